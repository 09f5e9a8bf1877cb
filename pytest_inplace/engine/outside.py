"""The microscope's part for what is kept outside autograd: by a ctx, by users' hooks, by a checkpoint."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import names, values
from pytest_inplace.engine.evidence import Case, Evidence, Rebound, Region, Settings, Watched, WrittenInputs
from pytest_inplace.engine.gradients import BackwardCall, Substitutes
from pytest_inplace.engine.held import Held, contents
from pytest_inplace.engine.inputs import WrittenInput
from pytest_inplace.engine.ledger import Suspect
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.reach import Named, settings_in, tensors_in
from pytest_inplace.reports.call_sites import Capture
from pytest_inplace.reports.findings import ValueDiff

if TYPE_CHECKING:
    import torch

    from pytest_inplace.engine.microscope import Microscope

MAX_REBOUND = 500
"""With more tensors than these, it is not looked for after each step whether one was exchanged."""
_PRIVATE = "private"
"""In place of a gradient: give the user's code a gradient of its own, which nobody else sees."""


class Outside:
    """Follows the suspects whose keys are given (everything but gradients if ``None``) through one run."""

    def __init__(self, scope: Microscope, keys: frozenset[Any] | None) -> None:
        self._scope = scope
        self._keys = keys
        self._cases: dict[Any, Case] = {}
        self._region: Region | None = None
        self.inputs = WrittenInputs()
        for key in keys or ():
            if isinstance(key, tuple) and key[0] == "grad":
                self._cases[key] = Case(kind="grad")

    def _wanted(self, key: Any) -> bool:
        return not self._scope.on_trial and (self._keys is None or key in self._keys)

    def _any(self, kind: str) -> bool:
        return self._keys is None or any(isinstance(key, tuple) and key[0] == kind for key in self._keys)

    def _watch(self, named: Iterable[Named], nameless: bool = False) -> list[Watched]:
        with quiet():
            watched = [Watched.of(name, tensor) for name, tensor in named]
        for item in watched:
            item.nameless = nameless
        self._scope.watched += watched
        return watched

    def _watch_exchange(
        self, reach: Callable[[], list[Named]], watched: list[Watched]
    ) -> list[Watched | Rebound]:
        """Watch also whether another tensor comes to be where one of these was reached."""
        if len(watched) > MAX_REBOUND:
            return [*watched]
        rebound = Rebound(reach, watched)
        self._scope.watched.append(rebound)
        return [*watched, rebound]

    def _forget(self, watched: list[Watched]) -> None:
        gone = set(map(id, watched))
        self._scope.watched = [item for item in self._scope.watched if id(item) not in gone]

    # -- what is kept ---------------------------------------------------------------------------------

    def held(self, held: Held) -> None:
        """A ctx keeps tensors."""
        if held.kind != "hooks" and self._wanted(held.key):
            found = [(item.name, tensor) for item in held.tensors if (tensor := item.ref()) is not None]
            # A ctx attribute has its name; what a checkpoint's function holds is the user's variable.
            watched = self._watch(found, nameless=held.kind == "recompute")
            everything: list[Watched | Rebound] = [*watched]
            if held.reach is not None:
                everything = self._watch_exchange(held.reach, watched)
            case = Case(kind=held.kind, watched=everything, alive=weakref.ref(held))
            if held.kind == "recompute" and self._region is not None:
                case.settings = self._region.settings
            self._cases[held.key] = case

    def dropped(self, key: Any) -> None:
        """What was kept is kept no longer, or the program ends, and no backward pass used it."""
        case = self._cases.get(key)
        cause = None if case is None else case.first_changed()
        if case is not None and cause is not None and not case.seen:
            self._blame(case, cause)
            case.seen = True

    def parked(self, parked: Any, tensor: torch.Tensor) -> None:
        """A user's hooks, or a checkpoint, took a tensor that autograd wanted saved."""
        if not self._wanted(parked.key):
            return
        with quiet():
            original = values.snapshot(tensor)
        case = Case(kind="recompute" if parked.recomputed else "hooks", original=original)
        case.alive = weakref.ref(parked)
        if parked.recomputed:
            case.region = self._region
            case.settings = None if self._region is None else self._region.settings
        elif parked.held is not None:
            found = [(item.name, kept) for item in parked.held.tensors if (kept := item.ref()) is not None]
            case.watched = [*self._watch(found, nameless=True)]
        else:
            # Kept out of our sight; an alias of our own shows whether that is still the saved memory.
            with quiet():
                case.alias = tensor.detach()
            case.watched = [*self._watch([("a tensor", case.alias)], nameless=True)]
        self._cases[parked.key] = case

    def checkpoint_begins(self, given: dict[str, Any]) -> None:
        """A checkpoint is about to run its function for the first time."""
        if (self._any("parked") or self._any("held")) and not self._scope.on_trial:
            parts = {"fn": None, "args": (), "kwargs": {}, **given}

            def reach() -> list[Named]:
                return [found for name in ("fn", "args", "kwargs") for found in tensors_in(parts[name], name)]

            def settings() -> dict[str, Any]:
                return {
                    k: v
                    for name in ("fn", "args", "kwargs")
                    for k, v in settings_in(parts[name], name).items()
                }

            watched = self._watch_exchange(reach, self._watch(reach(), nameless=True))
            numbers = Settings(settings)
            self._scope.watched.append(numbers)
            self._region = Region(watched, numbers, bool(given.get("preserve_rng_state", given)))

    # -- a Function's forward ---------------------------------------------------------------------------

    def around_forward(self, inputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
        """Run a Function's forward, watching its inputs."""
        if not self._any("call") or self._scope.on_trial:
            return call()
        watched = self._watch([(f"input {i}", tensor) for i, tensor in enumerate(inputs)])
        self._inputs = watched
        try:
            return call()
        finally:
            self._forget(watched)

    def input_written(
        self, key: Any, tensor: torch.Tensor, frame: FrameType | None, where: Capture | None
    ) -> None:
        """The forward that was called at a place wrote to this input and did not mark it dirty."""
        import torch

        if not self._wanted(key):
            return
        watched = next((w for w in self._inputs if w.ref() is tensor), None)
        case = Case(kind="input", after=torch._C._autograd._get_sequence_nr())
        case.where, case.name = where, names.tensor_name(tensor, frame)
        if watched is not None:
            case.writer = watched.writer
            with quiet():
                case.values = values.difference(watched.copy, tensor)
                case.written = WrittenInput.of(watched.copy, tensor)
        self.inputs.add(key, case)

    # -- backward -------------------------------------------------------------------------------------

    def around_backward(
        self, key: Any, given: list[torch.Tensor], call: Callable[..., Any], grads: tuple[Any, ...]
    ) -> Any:
        """Run user code that is given gradients, watching these."""
        case = self._cases.get(key)
        if case is None:
            return call(*grads)
        watched = self._watch([("grad", gradient) for gradient in given])
        try:
            return call(*grads)
        finally:
            written = next((w for w in watched if w.changed()), None)
            if written is not None and case.writer is None:
                case.seen, case.writer, case.tensor = True, written.writer, written.info()
                tensor = written.ref()
                if tensor is not None:
                    with quiet():
                        case.values = values.difference(written.copy, tensor)
            self._forget(watched)

    def on_trial_backward(
        self,
        key: Any,
        grads: tuple[Any, ...],
        call: Callable[..., Any],
        held: Held | None,
        passed_on: Callable[[Any], Any] | None,
    ) -> Any:
        """Run user code that is given gradients, with what the trial puts in place of what is kept."""
        substitutes = self._scope.substitutes
        pairs = substitutes.get(held.key) if held is not None else None
        if substitutes.get(key) is not _PRIVATE:
            with contents(pairs or []):
                return call(*grads)
        with quiet():
            own = [values.snapshot(g) if _tensor(g) else g for g in grads]
        with contents(pairs or []):
            result = call(*own)
        return passed_on(tuple(own)) if result is None and passed_on is not None else result

    def on_trial_accumulated(self, key: Any, leaf: torch.Tensor, call: Callable[..., Any]) -> Any:
        """Run a hook on a leaf whose gradient has just been accumulated, on trial."""
        if self._scope.substitutes.get(key) is _PRIVATE and leaf.grad is not None:
            with quiet():
                leaf.grad = values.snapshot(leaf.grad)
        return call()

    def unpark_on_trial(self, parked: Any, unpack: Callable[[Any], Any]) -> Any:
        """Unpack for a trial: from what was kept when it was saved, or from what is there now."""
        right = self._scope.substitutes.get(parked.key)
        if right is None:
            return parked.unpack_early(unpack)
        case = self._cases[parked.key]
        if case.kind == "hooks" and case.alias is None:
            with contents(right):
                tensor = unpack(parked.packed)
                with quiet():
                    return values.snapshot(tensor)
        return case.original

    def unparked(self, parked: Any, tensor: torch.Tensor) -> None:
        """The real backward pass got ``tensor`` back."""
        case = self._cases.get(parked.key)
        if case is None or case.original is None:
            return
        case.seen = True
        cause = self._cause(case)
        with quiet():
            if cause is not None and case.tensor is None:
                self._blame(case, cause)
            elif cause is None:
                case.values = values.difference(case.original, tensor)

    def other_output(self, key: Any, before: torch.Tensor, now: torch.Tensor) -> None:
        """A checkpointed function that is run again gives ``now``; it gave ``before``."""
        case = self._cases.get(key)
        if case is None or case.seen:
            return
        case.seen = True
        with quiet():
            case.values = values.difference(before, now)

    def _cause(self, case: Case) -> Watched | Rebound | None:
        candidates = case.watched if case.region is None else case.region.watched
        return next((w for w in candidates if w.changed()), None)

    def _blame(self, case: Case, cause: Watched | Rebound) -> None:
        tensor, before = cause.ref(), cause.copy
        case.writer, case.tensor = cause.writer, cause.info()
        if tensor is not None and before is not None and tensor.shape == before.shape:
            case.values = values.difference(before, tensor)

    # -- judging --------------------------------------------------------------------------------------

    def pending(self) -> bool:
        """Whether anything here is to be put on trial in the next backward pass."""
        return any(self._on_trial_next(case) for case in self._cases.values())

    def _on_trial_next(self, case: Case) -> bool:
        if case.harmful:
            return False
        if case.kind == "grad" or case.region is not None:
            return case.alive is None or case.alive() is not None
        return case.alive is not None and case.alive() is not None and case.first_changed() is not None

    def put_on_trial(
        self,
        call: BackwardCall,
        right: Substitutes,
        now: Substitutes,
        groups: dict[Any, list[Any]],
        evidence: dict[Any, Evidence],
    ) -> None:
        """Add what is kept outside autograd to a trial."""
        reentrant = any("CheckpointFunction" in node.name() for node in call.nodes)
        if reentrant or call.hidden_leaves:
            call.accumulating = True
        for key, case in self._cases.items():
            if not self._on_trial_next(case):
                continue
            if case.kind == "grad":
                right[key] = _PRIVATE
                if call.accumulates:
                    call.accumulating = True
            elif case.region is not None:
                right[key] = case.original
                # Looked at before any trial, which runs the function again and so may write again.
                cause = self._cause(case)
                if cause is not None and case.tensor is None:
                    self._blame(case, cause)
            else:
                right[key] = [
                    (t, w.copy)
                    for w in case.watched
                    if w.changed() and (t := w.ref()) is not None and w.copy is not None
                ]
                cause = case.first_changed()
                if cause is not None:
                    self._blame(case, cause)
                    case.seen = True
            now[key] = None
            group = ("region", id(case.region)) if case.region is not None else key
            groups.setdefault(group, []).append(key)
            evidence[key] = case

    def reproduced(self, suspect: Suspect) -> Evidence | None:
        """What this run saw of a suspect, or ``None`` if it did not happen again."""
        if suspect.kind == "input":
            return self.inputs.get(suspect.key) or self._not_written_again(suspect)
        case = self._cases.get(suspect.key)
        if case is None:
            return None
        if not case.seen:
            return None
        if case.kind == "recompute" and case.tensor is None:
            if case.region is not None and not case.region.preserve_rng_state:
                # Other random numbers in the recomputation were asked for.
                self._scope.doubts.not_checked("recomputation without preserved random numbers")
                case.judged, case.harmful = True, False
            elif case.writer is None:
                blamed = None if case.settings is None else case.settings.blame()
                said, case.writer = blamed or ("look at global state", None)
                case.note = f"no tensor that the checkpointed function was given has changed: {said}"
        if case.values is None:
            case.values = ValueDiff(0, 0, 0.0)
        return case

    def _not_written_again(self, suspect: Suspect) -> Evidence | None:
        """What to say of an input that this run did not see written.

        Memory that nobody filled may hold by chance what is written to it then, from the first run. Others of
        the same place tell whether what it writes is used.
        """
        if self._scope.was_cut:
            return None
        found = self.inputs.written_at(suspect.where)
        if found is None:
            self._scope.doubts.not_checked("an input that the second run did not write again")
        return found or Case(kind="input")


def _tensor(value: Any) -> bool:
    return type(value) in values.plain_types()
