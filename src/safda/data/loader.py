"""Batches of domains, read ahead: of training, a function of the step, and of evaluation, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence

import numpy as np
import torch
from torch import Tensor

from safda.data.ahead import read_ahead
from safda.data.domain import UNIFORMS_PER_SAMPLE, Domain
from safda.data.sampler import Sampler, mixed_seed
from safda.data.settings import num_workers
from safda.errors import SafdaError

_MOST_ROWS, _MOST_VALUES = 1024, 2**22  # in a batch of evaluation
_CROP_SEED = 0xC209  # keeps the seeds of crops apart from those of epochs and steps

#: Called with (done, total) as work goes on.
ProgressCallback = Callable[[int, int], None]


def training_batches(
    domains: Sequence[Domain],
    samplers: Sequence[Sampler],
    steps: range,
    shard: slice,
    seed: int,
    threads: int | None = None,
) -> Generator[list[tuple[Tensor, Tensor]], None, None]:
    """Yield each step's (row numbers, inputs) of each domain.

    A batch is a function of the samplers, the seed and the step alone, down to where a picture is cropped, whatever
    the number of threads and wherever ``steps`` starts.

    Args:
        domains: source and target.
        samplers: which rows each of them gives at a step.
        steps: the steps to come.
        shard: this process's rows of a batch.
        seed: decides where pictures are cropped.
        threads: how many read ahead; None chooses.
    """

    def request_of(step: int) -> tuple[int, list[Tensor]]:
        return step, [sampler.rows(step) for sampler in samplers]

    def read(request: tuple[int, list[Tensor]]) -> list[tuple[Tensor, Tensor]]:
        step, rows_of_each = request
        batches = []
        for number, (domain, rows) in enumerate(zip(domains, rows_of_each, strict=True)):
            uniforms = None
            if not domain.in_memory:  # only pictures are cropped; making a generator is a tenth of a small step's time
                generator = np.random.default_rng(mixed_seed(seed, step, number, _CROP_SEED))
                uniforms = generator.random((len(rows), UNIFORMS_PER_SAMPLE))[shard]
            batches.append((rows[shard], domain.batch(rows[shard], uniforms)))
        return batches

    if threads is None:
        threads = 0 if all(domain.in_memory for domain in domains) else num_workers()
    return read_ahead(read, map(request_of, steps), threads)


def evaluation_batches(domain: Domain) -> Generator[Tensor, None, None]:
    """Yield all inputs of a domain in order, as evaluation sees them, so many at once that memory stays small."""
    size = max(1, min(_MOST_ROWS, _MOST_VALUES // math.prod(domain.inputs.shape[1:])))
    return read_ahead(
        domain.batch, torch.split(torch.arange(len(domain)), size), 0 if domain.in_memory else num_workers()
    )


def feature_batches(domain: Domain, knob: str) -> Generator[Tensor, None, None]:
    """Yield all features of a domain in order; where its samples are not features, say which knob needs them."""
    if len(domain.inputs.shape) != 2:
        raise SafdaError(f"{domain.name}: {knob} needs features: arrays, or pictures with network.frozen = true")
    return evaluation_batches(domain)
