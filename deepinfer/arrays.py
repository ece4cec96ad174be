"""Types of the arrays that live on the host: token ids, slots, positions and tables of blocks."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
