"""Nothing wrong in silence where something is read: what is damaged, odd or in the way is told, and never used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import safda
from safda.cli import main
from safda.data import Domain
from safda.errors import SafdaError
from tests.conftest import TINY


def fit(files, out=None, **changes):
    return safda.fit(*map(str, files), out=out, cpu=True, **{**TINY, "steps": 3, **changes})


# ------------------------------------------------------------------------------------------------- finite answers


def test_a_model_whose_weights_are_not_finite_is_not_loaded(files, tmp_path, capsys):
    fit(files).save(tmp_path / "run")
    file = tmp_path / "run" / "model.safetensors"
    weights = load_file(file)
    weights["bottleneck.linear.bias"][3] = torch.nan
    save_file(weights, file)
    assert main(["predict", str(tmp_path / "run"), str(files[1])]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{file}: its weights bottleneck.linear.bias are not finite" in captured.err


def test_an_answer_that_is_not_finite_names_the_cause(files):
    adapted = fit(files, **{"network.features": "as-is"})
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32))
    rows[2, 1] = torch.nan
    with pytest.raises(SafdaError, match=r"^d: the answer to 2 is not finite \(1 such samples\): the sample itself is"):
        adapted.answer(Domain("d", rows))
    rows[2] = 3e38
    with pytest.raises(SafdaError, match=r"numbers as large as 3e\+38 are too much"):
        adapted.answer(Domain("d", rows))
    with torch.no_grad():
        adapted.model.classifier[0].weight[0, 0] = torch.inf
    with pytest.raises(SafdaError, match=r"such samples\): the weights classifier.0.weight are not"):
        adapted.answer(Domain("d", rows))
