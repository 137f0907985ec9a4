"""SigLIP's vision tower (Zhai et al. 2023): patches alone, and no norm before the first layer.

(vLLM: vllm/model_executor/models/siglip.py)
"""

from __future__ import annotations

from minivllm.models.vision.tower import VisionTower


class SiglipVisionModel(VisionTower):
    """The head that makes one vector of a whole picture is not needed, and not built."""

    has_class = False
    has_patch_bias = True
