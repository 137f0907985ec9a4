"""Siblings in Chinese: their kernels start in their language."""

import os

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """A kernel is started by the first cell's setup."""
    os.environ["MINIVLLM_LANG"] = "zh"
    try:
        return (yield)
    finally:
        del os.environ["MINIVLLM_LANG"]
