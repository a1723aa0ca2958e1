"""Counts the bytes of tensors that live at once while operations run, on any device and on tensors without data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While it is entered, follows the storages that operations make until they are freed.

    What a kernel allocates and frees within one operation is not seen.
    """

    def __init__(self, known: Iterable[torch.Tensor], held: Iterable[torch.UntypedStorage] = ()) -> None:
        """known: tensors whose memory is not counted. held: storages that live already, and may be freed meanwhile."""
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        for storage in held:
            self._note(storage)
        self.peak_bytes = self.bytes

    @property
    def bytes(self) -> int:
        """Bytes of the storages that live now."""
        self._live = {key: each for key, each in self._live.items() if not each[0].expired()}
        return sum(size for _, size in self._live.values())

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and note what it made."""
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known and (key not in self._live or self._live[key][0].expired()):
            self._live[key] = StorageWeakRef(storage), storage.nbytes()
