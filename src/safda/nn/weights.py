"""Weights in files: safetensors, which cannot hold code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from safda.errors import SafdaError, first_few, first_line, reading

_HUB_FILE = "model.safetensors"
_BRING = "--weights FILE (in Python, network.weights)"
_PATIENCE = 5  # seconds to wait for the hub's first answer


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors, all of them finite; the format cannot hold code."""
    with reading(path, "weights file"):
        weights = load_file(path)
    bad = not_finite(weights)
    if bad:
        names = first_few(bad, count=True)
        raise SafdaError(f"{path}: its weights {names} are not finite; take another copy, or train again")
    return weights


def not_finite(weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that hold a NaN or an infinity.

    >>> not_finite({"a": torch.zeros(2), "b": torch.tensor([0.0, torch.nan])})
    ['b']
    """
    return [name for name, value in weights.items() if not torch.isfinite(value).all()]


def load_backbone(network: nn.Module, path: Path, head: tuple[str, ...], name: str) -> None:
    """Fill a backbone from a file that must fit it exactly, but for a classifier that the backbone has not.

    Args:
        network: the backbone.
        path: a safetensors file.
        head: names of the classifier's modules, whose weights the file may hold.
        name: what the backbone is called.
    """
    if not path.is_file():
        raise SafdaError(f"network.weights = '{path}': no such file")
    weights, own = read_weights(path), network.state_dict()
    kept = {name: value for name, value in weights.items() if name in own or not name.startswith(head or "\0")}
    wrong = {
        "it lacks": [name for name in own if name not in kept],
        "it has beyond them": [name for name in kept if name not in own],
        "of another shape are": [name for name in own if name in kept and kept[name].shape != own[name].shape],
    }
    if any(wrong.values()):
        details = "; ".join(f"{what} {first_few(names, count=True)}" for what, names in wrong.items() if names)
        raise SafdaError(
            f"{path}: does not fit the {len(own)} weights of {name!r}: {details}; "
            "name the file's own network: --backbone"
        )
    network.load_state_dict(kept)


def hub_file(name: str, repository: str | None) -> Path:
    """Return timm's weights of a model as a file: from the hub's cache, or downloaded there.

    The hub's own client would try again and again for a minute where there is no connection; so ask once first.

    Args:
        name: of the model, for errors.
        repository: where timm has its weights on the hub, if anywhere.
    """
    from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    if not repository:
        raise SafdaError(f"timm has no weights of {name!r} to download; bring your own: {_BRING}")
    there = try_to_load_from_cache(repository, _HUB_FILE)
    if isinstance(there, str):
        return Path(there)
    try:
        get_session().head(hf_hub_url(repository, _HUB_FILE), timeout=_PATIENCE)
        return Path(hf_hub_download(repository, _HUB_FILE))
    except Exception as error:  # the client's errors differ between its versions
        raise SafdaError(
            f"the weights of {name!r} are not on this machine and cannot be downloaded ({first_line(error)}); fetch "
            f"{_HUB_FILE} of {repository} from the hub where you can, and give it here: {_BRING}"
        ) from None


def digest_of(network: nn.Module) -> str:
    """Return a digest of a network's kind and weights."""
    digest = hashlib.sha256(type(network).__qualname__.encode())
    for name, value in network.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()[:32]


def structure_digest_of(network: nn.Module) -> str:
    """Return a digest of a network's weights and of what its layers are: equal weights may be put to another use.

    >>> digests = {structure_digest_of(nn.Sequential(nn.Flatten(), layer)) for layer in (nn.ReLU(), nn.Tanh())}
    >>> len(digests)
    2
    """
    structure = re.sub(r" at 0x[0-9a-f]+", "", repr(network))  # where a function is in memory is no part of it
    return hashlib.sha256(f"{digest_of(network)} {structure}".encode()).hexdigest()[:32]
