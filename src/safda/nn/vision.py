"""The guard that lets torchvision, and timm with it, import: for whoever imports one of them."""

from __future__ import annotations

import threading

import torch

_GUARD = threading.Lock()


def guard_torchvision() -> None:
    """Let torchvision import beside a torch whose build it was not compiled for.

    Its Python half registers shapes for two of its own C++ operators, and fails where the C++ half did not load.
    Declaring their schemas is enough for transforms, models and timm, none of which call them.
    """
    with _GUARD:  # threads that decode pictures may come here together
        try:
            import torchvision
        except RuntimeError:
            for operator in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
            import torchvision  # noqa: F401
