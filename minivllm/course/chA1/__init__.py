"""Notebook A1: The roofline: how fast could it be?"""
