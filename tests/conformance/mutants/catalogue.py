"""All mutants: a backend with one fault, the operator whose cases are to catch it, and how.

A mutant stands once for every operator at which it is to be seen. `docs/mutants.md` says which case
catches it first.
"""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

from deepinfer.conformance.case import Failure
from deepinfer.conformance.profiles import PROFILES
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants import (
    attention,
    cache,
    dense,
    device,
    engram,
    experts,
    hyper,
    packing,
    sampling,
    slots,
    state,
)

MODULES = (
    packing,
    dense,
    hyper,
    engram,
    cache,
    attention,
    experts,
    slots,
    sampling,
    device,
    state,
)
RIGHT = (engram.OwnGate, experts.OtherSums, sampling.OwnProcess)
"""Backends of these modules that have no fault."""


class Mutant(NamedTuple):
    """A backend that must fail a quick case of an operator, or of a suite of several calls."""

    backend: type[ReferenceBackend]
    operator: str
    failure: Failure

    @property
    def name(self) -> str:
        """Its fault in a few words, as part of an id: "nibbles-swapped"."""
        return re.sub("(?<!^)(?=[A-Z])", "-", self.backend.__name__).lower()

    @property
    def id(self) -> str:
        """Name and operator, which no two mutants share."""
        return f"{self.name}-{self.operator}"

    @property
    def fault(self) -> str:
        """What is wrong with it, in a sentence."""
        return " ".join((inspect.getdoc(self.backend) or "").split())

    @property
    def twin(self) -> type[ReferenceBackend]:
        """The same backend without the fault: the reference, or what stands in for a part of it."""
        right = (*RIGHT, ReferenceBackend)
        return next(base for base in self.backend.__mro__ if base in right)

    @property
    def profile(self) -> str:
        """The smallest profile that claims its operator."""
        claiming = [one for one in PROFILES.values() if self.operator in one.operators]
        return min(claiming, key=lambda one: len(one.operators)).name


MUTANTS = (
    # packing of matrices, tables and vectors
    Mutant(packing.NibblesSwapped, "pack_linear", Failure.NUMBERS),
    Mutant(packing.NibblesSwapped, "linear", Failure.NUMBERS),
    Mutant(packing.ScaleOfNextBlock, "pack_linear", Failure.NUMBERS),
    Mutant(packing.ScaleOfNextBlock, "grouped_linear", Failure.NUMBERS),
    Mutant(packing.LastScaleDefaulted, "pack_linear", Failure.NUMBERS),
    Mutant(packing.RoundedAtLoad, "pack_linear", Failure.NUMBERS),
    Mutant(packing.RoundedAtLoad, "linear", Failure.NUMBERS),
    Mutant(packing.RoundedAtLoad, "logits", Failure.NUMBERS),
    Mutant(packing.TableScaleOfNextRow, "pack_table", Failure.NUMBERS),
    Mutant(packing.VectorRoundedAtLoad, "pack_vector", Failure.NUMBERS),
    Mutant(packing.VectorInBf16, "pack_vector", Failure.DTYPE),
    Mutant(packing.VectorFlattened, "pack_vector", Failure.SHAPE),
    # matmuls, tables, norms, quantisers, rotation
    Mutant(dense.MinusOneWraps, "embed", Failure.RAISES),
    Mutant(dense.ValuesConsumed, "linear", Failure.NUMBERS),
    Mutant(dense.QuantisedHalfConsumed, "linear", Failure.NUMBERS),
    Mutant(dense.LastColumnLost, "linear", Failure.NUMBERS),
    Mutant(dense.GroupOfNeighbour, "grouped_linear", Failure.NUMBERS),
    Mutant(dense.SumOfBatch, "linear", Failure.BATCH),
    Mutant(dense.SumOfRun, "linear", Failure.REPEAT),
    Mutant(dense.NormWeightUnused, "rms_norm", Failure.NUMBERS),
    Mutant(dense.UsualEps, "rms_norm", Failure.NUMBERS),
    Mutant(dense.NanSpreads, "rms_norm", Failure.NAN),
    Mutant(dense.NormInPlace, "rms_norm", Failure.WRITE),
    Mutant(dense.WrittenPastTheEnd, "rms_norm", Failure.WRITE),
    Mutant(dense.FloorMissing, "quantise", Failure.NUMBERS),
    Mutant(dense.ScaleRoundedDown, "quantise", Failure.NUMBERS),
    Mutant(dense.TiesAway, "quantise", Failure.NUMBERS),
    Mutant(dense.QuantisedBeforeRounding, "norm_quantise", Failure.NUMBERS),
    Mutant(dense.NanSpreads, "norm_quantise", Failure.NAN),
    Mutant(dense.HalvesPaired, "rope", Failure.NUMBERS),
    Mutant(dense.YarnIgnored, "rope", Failure.NUMBERS),
    Mutant(dense.InverseSkipped, "rope", Failure.NUMBERS),
    Mutant(dense.AngleNotRounded, "rope", Failure.NUMBERS),
    Mutant(dense.YarnIgnored, "project", Failure.NUMBERS),
    Mutant(dense.KvNormUnused, "project", Failure.NUMBERS),
    Mutant(dense.LatentQuantisedInRef, "project", Failure.NUMBERS),
    Mutant(dense.HiddenNotNormed, "logits", Failure.NUMBERS),
    # residual streams
    Mutant(hyper.SinkhornFewer, "mix", Failure.NUMBERS),
    Mutant(hyper.SinkhornEndsWithRows, "mix", Failure.NUMBERS),
    Mutant(hyper.CombTransposed, "mix", Failure.NUMBERS),
    Mutant(hyper.PostNotDoubled, "mix", Failure.NUMBERS),
    Mutant(hyper.PreWithoutEps, "mix", Failure.NUMBERS),
    Mutant(hyper.ScaleOfPre, "mix", Failure.NUMBERS),
    Mutant(hyper.BaseUnused, "mix", Failure.NUMBERS),
    Mutant(hyper.RmsWithUsualEps, "mix", Failure.NUMBERS),
    Mutant(hyper.MixInBf16, "mix", Failure.NUMBERS),
    Mutant(hyper.StreamMajorLost, "mix", Failure.NUMBERS),
    Mutant(hyper.LastStreamLost, "collapse", Failure.NUMBERS),
    Mutant(hyper.SumInBf16, "collapse", Failure.NUMBERS),
    Mutant(hyper.NanSpreads, "collapse", Failure.NAN),
    Mutant(hyper.CombReadBackwards, "expand", Failure.NUMBERS),
    Mutant(hyper.PostOfFirst, "expand", Failure.NUMBERS),
    Mutant(hyper.StreamsInPlace, "expand", Failure.WRITE),
    Mutant(hyper.PreOfSameSite, "enter", Failure.NUMBERS),
    Mutant(hyper.StepNotQuantised, "enter", Failure.DTYPE),
    Mutant(hyper.PostNotDoubled, "enter", Failure.NUMBERS),
    Mutant(hyper.PreOfSameSite, "advance", Failure.NUMBERS),
    Mutant(hyper.MixOfOldStreams, "advance", Failure.NUMBERS),
    Mutant(hyper.SinkhornFewer, "advance", Failure.NUMBERS),
    # n-gram memory
    Mutant(engram.HashOfNextHead, "ngram_rows", Failure.NUMBERS),
    Mutant(engram.HistoryOfRowsAbove, "ngram_rows", Failure.NUMBERS),
    Mutant(engram.GapDoesNotBlock, "ngram_rows", Failure.NUMBERS),
    Mutant(engram.PadIsZero, "ngram_rows", Failure.NUMBERS),
    Mutant(engram.ShortMultipliers, "ngram_rows", Failure.NUMBERS),
    Mutant(engram.MinusOneWraps, "gather", Failure.RAISES),
    Mutant(engram.LastScaleDefaulted, "gather", Failure.NUMBERS),
    Mutant(engram.ColumnsReversed, "gather", Failure.NUMBERS),
    Mutant(engram.RootUnsigned, "inject", Failure.NUMBERS),
    Mutant(engram.RootMissing, "inject", Failure.NUMBERS),
    Mutant(engram.RootWithoutFloor, "inject", Failure.NUMBERS),
    Mutant(engram.KeyWeightUnused, "inject", Failure.NUMBERS),
    Mutant(engram.UsualEps, "inject", Failure.NUMBERS),
    Mutant(engram.BlockedIgnored, "inject", Failure.NUMBERS),
    Mutant(engram.HashOfNextHead, "engram", Failure.NUMBERS),
    Mutant(engram.LastScaleDefaulted, "engram", Failure.NUMBERS),
    Mutant(engram.EngramSkipped, "engram", Failure.NUMBERS),
    # the paged cache
    Mutant(cache.NibblesSwapped, "store", Failure.NUMBERS),
    Mutant(cache.ScaleOfNextGroup, "store", Failure.NUMBERS),
    Mutant(cache.MinusOneStored, "store", Failure.WRITE),
    Mutant(cache.PastTheLastEntry, "store", Failure.WRITE),
    Mutant(cache.FirstPageIgnored, "store", Failure.NUMBERS),
    Mutant(cache.ScaleDefaultedToOne, "load", Failure.NUMBERS),
    Mutant(cache.PlanarReadInterleaved, "load", Failure.NUMBERS),
    Mutant(cache.MinusOneLoaded, "load", Failure.NUMBERS),
    Mutant(cache.CopyReversed, "copy", Failure.WRITE),
    Mutant(cache.ExportInOrderOfBlocks, "export", Failure.NUMBERS),
    Mutant(cache.ExportWithPadding, "export", Failure.SHAPE),
    Mutant(cache.ImportOverPadding, "import_", Failure.WRITE),
    Mutant(cache.MembersNotKept, "compress", Failure.NUMBERS),
    Mutant(cache.PendingForgotten, "compress", Failure.WRITE),
    Mutant(cache.GatesIgnored, "compress", Failure.NUMBERS),
    Mutant(cache.GatesIgnored, "update_context", Failure.NUMBERS),
    Mutant(cache.EntryOnePositionLate, "update_context", Failure.NUMBERS),
    Mutant(cache.MinusOneStored, "update_context", Failure.WRITE),
    Mutant(cache.NormWeightUnused, "norm_rope_store", Failure.NUMBERS),
    Mutant(cache.HalvesPaired, "norm_rope_store", Failure.NUMBERS),
    Mutant(cache.NibblesSwapped, "norm_rope_store", Failure.NUMBERS),
    # selection and attention
    Mutant(attention.KeysReadInterleaved, "index_scores", Failure.NAN),
    Mutant(attention.ReluMissing, "index_scores", Failure.NUMBERS),
    Mutant(attention.CausalOneLate, "index_scores", Failure.NAN),
    Mutant(attention.CausalOneEarly, "index_scores", Failure.NAN),
    Mutant(attention.ScaleDefaultedToOne, "index_scores", Failure.NUMBERS),
    Mutant(attention.TermsNotRounded, "index_scores", Failure.NUMBERS),
    Mutant(attention.LastBlockDropped, "best_blocks", Failure.NUMBERS),
    Mutant(attention.BlocksHigherOfEqual, "best_blocks", Failure.NUMBERS),
    Mutant(attention.TopHigherOfEqual, "top", Failure.NUMBERS),
    Mutant(attention.TopKFewer, "top", Failure.NUMBERS),
    Mutant(attention.CandidatesIgnored, "top", Failure.NUMBERS),
    Mutant(attention.NanSelected, "top", Failure.NUMBERS),
    Mutant(attention.ReluMissing, "select", Failure.NUMBERS),
    Mutant(attention.TopKFewer, "select", Failure.NUMBERS),
    Mutant(attention.TopHigherOfEqual, "select", Failure.NUMBERS),
    Mutant(attention.CandidatesIgnored, "select", Failure.NUMBERS),
    Mutant(attention.LastBlockDropped, "select", Failure.NUMBERS),
    Mutant(attention.QueriesNotRotated, "select", Failure.NUMBERS),
    Mutant(attention.SinkIgnored, "attend", Failure.NUMBERS),
    Mutant(attention.SinkTwiceScaled, "attend", Failure.NUMBERS),
    Mutant(attention.WindowShort, "attend", Failure.NUMBERS),
    Mutant(attention.WindowLong, "attend", Failure.NUMBERS),
    Mutant(attention.MinusOneAttended, "attend", Failure.NUMBERS),
    Mutant(attention.OtherSequence, "attend", Failure.NUMBERS),
    Mutant(attention.NanSpreads, "attend", Failure.NAN),
    Mutant(attention.BatchDependentSum, "attend", Failure.BATCH),
    Mutant(attention.RunToRun, "attend", Failure.REPEAT),
    Mutant(attention.SinkIgnored, "attend_output", Failure.NUMBERS),
    Mutant(attention.WindowShort, "attend_output", Failure.NUMBERS),
    Mutant(attention.WindowLong, "attend_output", Failure.NUMBERS),
    Mutant(attention.OutputNotRotatedBack, "attend_output", Failure.NUMBERS),
    # routing and experts
    Mutant(experts.BiasInWeights, "route", Failure.NUMBERS),
    Mutant(experts.BiasNeverRead, "route", Failure.NUMBERS),
    Mutant(experts.ImageBiasNeverRead, "route", Failure.NUMBERS),
    Mutant(experts.ScaleOfWeightsMissing, "route", Failure.NUMBERS),
    Mutant(experts.HigherExpertFirst, "route", Failure.NUMBERS),
    Mutant(experts.WeightsSentInBf16, "dispatch", Failure.NUMBERS),
    Mutant(experts.ChoicesSorted, "dispatch", Failure.NUMBERS),
    Mutant(experts.ClampDropped, "swiglu", Failure.NUMBERS),
    Mutant(experts.GateClampedBelow, "swiglu", Failure.NUMBERS),
    Mutant(experts.QuantisedAfterRounding, "swiglu", Failure.NUMBERS),
    Mutant(experts.ClampedInPlace, "swiglu", Failure.WRITE),
    Mutant(experts.WrittenPastTheEnd, "swiglu", Failure.WRITE),
    Mutant(experts.NanSpreads, "swiglu", Failure.NAN),
    Mutant(experts.WeightAfterProjection, "expert_mlp", Failure.NUMBERS),
    Mutant(experts.LastRowsOfExpertLost, "expert_mlp", Failure.NUMBERS),
    Mutant(experts.SumOfBatch, "expert_mlp", Failure.BATCH),
    Mutant(experts.SumOfRun, "expert_mlp", Failure.REPEAT),
    Mutant(experts.InputQuantisedInRef, "expert_mlp", Failure.NUMBERS),
    Mutant(experts.QuantisedAfterRounding, "expert_mlp", Failure.NUMBERS),
    Mutant(slots.NibblesSwapped, "expert_mlp", Failure.NUMBERS),
    Mutant(slots.ScaleOfNextBlock, "expert_mlp", Failure.NUMBERS),
    Mutant(slots.LastScaleDefaulted, "expert_mlp", Failure.NUMBERS),
    Mutant(experts.SharedUpNeverRead, "shared_mlp", Failure.NUMBERS),
    Mutant(experts.SharedExpertMissing, "combine", Failure.NUMBERS),
    Mutant(experts.SummedInOrderOfChoice, "combine", Failure.NUMBERS),
    Mutant(experts.SumNotRounded, "combine", Failure.NUMBERS),
    Mutant(experts.ImageBiasNeverRead, "mixture", Failure.NUMBERS),
    Mutant(slots.SlotsWrap, "pack_experts", Failure.RAISES),
    Mutant(slots.WritesNextSlot, "pack_experts", Failure.NUMBERS),
    Mutant(slots.ImportForgetsDown, "pack_experts", Failure.NUMBERS),
    # sampling and the device's services
    Mutant(sampling.TopPOneLate, "process", Failure.NUMBERS),
    Mutant(sampling.TopPStrict, "process", Failure.NUMBERS),
    Mutant(sampling.TopKBeforeTopP, "process", Failure.NUMBERS),
    Mutant(sampling.MinPAbsolute, "process", Failure.NUMBERS),
    Mutant(sampling.MinPNeverRead, "process", Failure.NUMBERS),
    Mutant(sampling.HigherTokenFirst, "process", Failure.NUMBERS),
    Mutant(sampling.NotRenormalised, "process", Failure.NUMBERS),
    Mutant(sampling.ProcessNanSpreads, "process", Failure.NAN),
    Mutant(sampling.PositionIgnored, "sample", Failure.NUMBERS),
    Mutant(sampling.PositionCut, "sample", Failure.NUMBERS),
    Mutant(sampling.SeedCut, "sample", Failure.NUMBERS),
    Mutant(sampling.PurposeIgnored, "sample", Failure.NUMBERS),
    Mutant(sampling.DrawDependsOnRow, "sample", Failure.NUMBERS),
    Mutant(sampling.MassesRounded, "sample", Failure.NUMBERS),
    Mutant(sampling.NanRowDraws, "sample", Failure.NUMBERS),
    Mutant(sampling.MaskBitsReversed, "mask", Failure.NUMBERS),
    Mutant(sampling.MaskSignBitLost, "mask", Failure.NUMBERS),
    Mutant(sampling.TopTiesReversed, "top_logprobs", Failure.NUMBERS),
    Mutant(device.SharesHostMemory, "device", Failure.NUMBERS),
    Mutant(device.WorkspaceOfAllNames, "device", Failure.NUMBERS),
    Mutant(device.WorkspaceNotKept, "device", Failure.NUMBERS),
    Mutant(device.CopyCutShort, "device", Failure.NUMBERS),
    Mutant(device.CopyIgnoresStrides, "device", Failure.NUMBERS),
    Mutant(device.MemoryOverfull, "device", Failure.NUMBERS),
    Mutant(device.PlanWritesBatch, "device", Failure.WRITE),
    Mutant(device.CaptureFreezesInputs, "device", Failure.NUMBERS),
    # state across steps
    Mutant(cache.PendingForgotten, "stateful.chunks", Failure.NUMBERS),
    Mutant(cache.MembersNotKept, "stateful.rollback", Failure.NUMBERS),
    Mutant(state.WrittenOnce, "stateful.rollback", Failure.NUMBERS),
    Mutant(cache.PendingForgotten, "stateful.resumed", Failure.NUMBERS),
    Mutant(cache.ExportInOrderOfBlocks, "stateful.moved", Failure.NUMBERS),
    Mutant(state.OwnImages, "stateful.moved", Failure.NUMBERS),
    Mutant(state.ImportStaysTied, "stateful.forked", Failure.NUMBERS),
    Mutant(cache.CopyReversed, "stateful.forked", Failure.NUMBERS),
    # whole models, and numbers of an independent implementation
    Mutant(hyper.PreOfSameSite, "model.bundled", Failure.NUMBERS),
    Mutant(engram.HistoryOfRowsAbove, "model.bundled", Failure.NUMBERS),
    Mutant(dense.YarnIgnored, "model.bundled", Failure.NUMBERS),
    Mutant(dense.HalvesPaired, "model.vectors", Failure.NUMBERS),
    Mutant(hyper.CombTransposed, "model.vectors", Failure.NUMBERS),
    Mutant(engram.HashOfNextHead, "model.vectors", Failure.NUMBERS),
    Mutant(attention.SinkIgnored, "model.vectors", Failure.NUMBERS),
    Mutant(experts.BiasInWeights, "model.vectors", Failure.NUMBERS),
)
