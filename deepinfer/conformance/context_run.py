"""`ContextRun`: the cache of one sequence on one backend, written step by step.

A KV-source layer of a given ratio and a window layer write what they would write in a model.
`entries` reads everything back that a later row could see.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, CompressorState, Numerics, Region, Table
from deepinfer.backend.resolution import Operators
from deepinfer.conformance.case import Case
from deepinfer.conformance.cases.batches import Chunk, Geometry, PagedCache, batch_of
from deepinfer.conformance.suite import generator_of, numerics_of
from deepinfer.conformance.trees import map_leaves
from deepinfer.conformance.world import World
from deepinfer.formats import quantise
from deepinfer.formats.dtypes import COMPUTE_DTYPES

LENGTH = 40
"""Tokens of a sequence: two blocks of 16 and half of a third one, in toy geometry."""


@dataclass
class Tokens:
    """Inputs of the rows of a sequence: activations [L, H] and window values [L, D]."""

    hidden: Tensor
    window: Tensor

    def with_other(self, start: int, other: Tokens) -> Tokens:
        """These tokens, with another sequence's from `start` on."""
        return Tokens(
            torch.cat([self.hidden[:start], other.hidden[start:]]),
            torch.cat([self.window[:start], other.window[start:]]),
        )


class ContextRun:
    """One sequence on one set of operators. Pools start with random bytes and shuffled blocks."""

    def __init__(self, case: Case, operators: Operators, layer: dict[str, Any], salt: int) -> None:
        """layer: the arguments of an `update_context` case, whose weights are taken."""
        self._numerics: Numerics = numerics_of(case)
        self._operators = operators
        self.geometry = Geometry(ratio=case.size("ratio"))
        generator = generator_of(Case.of(case.operator, {**dict(case.facts), "salt": salt}))
        memory = PagedCache(self.geometry, "prompt", LENGTH, generator, COMPUTE_DTYPES[case.dtype])
        _scramble(memory, generator)
        world = World(operators)
        placed = world.place({"weights": layer["weights"], "memory": vars(memory)})
        self.weights, memory_placed = placed["weights"], placed["memory"]
        self.main: Region = memory_placed["main"]
        self.index: Region = memory_placed["index"]
        self.window: Region = memory_placed["window"]
        self.state: CompressorState | None = (
            memory_placed["state"] if self.geometry.ratio > 1 else None
        )
        self.slot = 1
        self.context_table: Table = memory.batch.context
        self.window_table: Table = memory.batch.window

    def step(self, tokens: Tokens, start: int, stop: int) -> None:
        """Run rows start..stop-1."""
        batch = map_leaves(self._to_device, self._batch(start, stop))
        x = self._to_device(tokens.hidden[start:stop])
        scheme = self._numerics.activation_scheme
        a = Activation(x) if scheme is None else Activation(x, quantise(x, scheme), scheme)
        operators = self._operators
        operators.update_context(
            a, self.weights, self.state, self.main, self.index, batch, self._numerics
        )
        window = self._to_device(tokens.window[start:stop])
        operators.store(window, self.window, batch.positions, batch)

    def entries(self, length: int) -> dict[str, Tensor]:
        """Everything of the first `length` tokens that a later row sees, dequantised, on the host.

        members: what the compressor keeps of the group that is not complete.
        """
        ratio = self.geometry.ratio
        first = max(0, length - self.geometry.window + 1)
        found = {
            "main": self._load(self.main, 0, length // ratio),
            "index": self._load(self.index, 0, length // ratio),
            "window": self._load(self.window, first, length),
        }
        if self.state is not None and length % ratio:
            positions = torch.arange(length - length % ratio, length)
            places = positions % self.state.ring
            found["members"] = self.state.members[self.slot].cpu()[places].flatten(1).clone()
        return found

    def export(self) -> tuple[Tensor, Tensor]:
        """Images of its context blocks and window pages, on the host."""
        images = []
        for region, table in ((self.main, self.context_table), (self.window, self.window_table)):
            blocks = self._to_device(table.blocks[0])
            images.append(self._operators.export(region.pool, blocks).cpu())
        return images[0], images[1]

    def import_(self, images: tuple[Tensor, Tensor]) -> None:
        """Write the images of another run of the same geometry into the blocks of this one."""
        regions = (self.main, self.context_table), (self.window, self.window_table)
        for (region, table), image in zip(regions, images, strict=True):
            blocks = self._to_device(table.blocks[0])
            self._operators.import_(region.pool, blocks, self._to_device(image))

    def take_state(self, other: ContextRun) -> None:
        """Take the pending members of another run."""
        if self.state is not None and other.state is not None:
            self.state.members.copy_(other.state.members.cpu())

    def fork(self, length: int) -> ContextRun:
        """A sequence with the same first `length` tokens, in the same pools, as an engine forks it.

        Full blocks are shared; one that is partly filled is copied, and so are pending members.
        """
        child = copy.copy(self)
        child.slot = 2
        sizes = self.geometry.block_tokens, self.geometry.page_tokens
        child.context_table = self._forked(self.main, self.context_table, length, sizes[0])
        child.window_table = self._forked(self.window, self.window_table, length, sizes[1])
        if self.state is not None:
            self.state.members[child.slot] = self.state.members[self.slot]
        return child

    def _forked(self, region: Region, table: Table, length: int, size: int) -> Table:
        """The child's table. Its blocks are new ones from the first block on that is not full."""
        own, full = table.blocks[0], length // size
        unused = [n for n in range(1, region.pool.num_blocks) if n not in own.tolist()]
        blocks = own.clone()
        blocks[full:] = torch.tensor(unused[: len(own) - full])
        if length % size:
            pair = torch.stack((own[full], blocks[full])).unsqueeze(0)
            self._operators.copy(region.pool, self._to_device(pair))
        return Table(blocks.unsqueeze(0), table.first)

    def _load(self, region: Region, first: int, stop: int) -> Tensor:
        numbers = self._to_device(torch.arange(first, stop))
        batch = map_leaves(self._to_device, self._batch(0, LENGTH))
        owners = torch.zeros_like(numbers)
        return self._operators.load(region, owners, numbers, batch, torch.float32).cpu()

    def _batch(self, start: int, stop: int) -> Any:
        batch = batch_of([Chunk(start, stop)], 0, self.context_table, self.window_table)
        return replace(batch, slots=torch.tensor([self.slot]))

    def _to_device(self, value: Any) -> Any:
        return value.to(self._operators.device) if isinstance(value, Tensor) else value


def _scramble(memory: PagedCache, generator: torch.Generator) -> None:
    """Fill both pools with random bytes, so that a read of what was never written shows."""
    for pool in (memory.context_pool, memory.window_pool):
        noise = torch.randint(0, 256, pool.data.shape, generator=generator)
        pool.data.copy_(noise.to(torch.uint8))


def random_tokens(case: Case, hidden: int, salt: int) -> Tokens:
    """The tokens of a case; another salt gives other ones."""
    generator = generator_of(Case.of(case.operator, {**dict(case.facts), "tokens": salt}))
    dtype = COMPUTE_DTYPES[case.dtype]
    return Tokens(
        torch.randn(LENGTH, hidden, generator=generator).to(dtype),
        torch.randn(LENGTH, Geometry().width, generator=generator).to(dtype),
    )
