"""The ``inplace`` fixture: what a test can say to, and ask of, the check that watches it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_inplace.reports.findings import Finding, TensorInfo, rule_for

if TYPE_CHECKING:
    import torch

    from pytest_inplace.engine.ledger import Suspect
    from pytest_inplace.engine.microscope import Microscope


class Inplace:
    """The check of the running test. Get it as the fixture ``inplace``."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def _lens(self) -> Microscope:
        """The microscope of this run of the test, the first or the second."""
        import torch  # noqa: F401 - a test that has not imported torch yet is watched from here on

        from pytest_inplace.engine.watch import active_lens

        lens = active_lens()
        if lens is None:
            raise RuntimeError("inplace: the check of this test is not running")
        return lens  # type: ignore[no-any-return]

    @property
    def findings(self) -> list[Finding]:
        """What has been found in this test so far."""
        from pytest_inplace.engine.replay import findings_of

        lens = self._lens()
        return findings_of(lens, list(lens.ledger.suspects.values()), "judged while the test ran")

    @contextmanager
    def allow(self, reason: str) -> Iterator[None]:
        """Accept the writes made inside the block: the values they leave count as the saved ones.

        PyTorch's own version error is not silenced by it.

        Args:
            reason: why these writes are right; for the reader.

        Raises:
            TypeError: if there is no reason.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise TypeError("inplace.allow needs a reason, a text that says why these writes are right")
        with self._lens().accepting():
            yield

    @contextmanager
    def raises(self, rule: str) -> Iterator[None]:
        """The block must produce a finding of this rule, by code or name, which is then no failure.

        PyTorch's own error about the same write is caught as well.

        Raises:
            ValueError: if there is no such rule.
            pytest.fail.Exception: if the block does not produce the finding.
        """
        try:
            wanted = rule_for(rule)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        lens = self._lens()
        ledger = lens.ledger
        earlier = dict(ledger.suspects)
        ledger.suspects.clear()
        raised: BaseException | None = None
        try:
            yield
        except (RuntimeError, AssertionError) as error:
            raised = error
        produced = _produced(lens, raised)
        expected = [source for source, finding in produced if finding.code == wanted.code]
        lens.seen(source for source in expected if not isinstance(source, BaseException))
        # What is of another rule, or was there before, is still to be reported.
        others = {k: s for k, s in ledger.suspects.items() if all(s is not e for e in expected)}
        ledger.suspects = {**earlier, **others}
        if raised is not None and not any(_told_by(raised, source) for source in expected):
            raise raised
        if not expected:
            codes = ", ".join(sorted({finding.code for _, finding in produced}))
            found = f"; it did find {codes}" if codes else ""
            pytest.fail(f"DID NOT FIND {wanted.code} {wanted.name}{found}")

    def check(self) -> None:
        """Judge everything saved so far, now: fail here if a tensor that backward still needs has changed.

        Raises:
            InplaceError: with the findings.
        """
        from pytest_inplace.engine.guard import InplaceError
        from pytest_inplace.engine.replay import findings_of

        lens = self._lens()
        suspects: list[Suspect] = [*lens.ledger.suspects.values(), *lens.changed_now()]
        findings = findings_of(lens, suspects, "judged by inplace.check()")
        if findings:
            raise InplaceError(findings, suspects)

    def compare(self, name: str, tensor: torch.Tensor) -> None:
        """A value for ``--inplace-parity`` to compare between devices; without it, nothing happens.

        Raises:
            TypeError: if ``tensor`` is no tensor.
        """
        import torch

        from pytest_inplace.parity.recording import active_recorder

        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"inplace.compare takes a name and a tensor, not {type(tensor).__name__}")
        recorder = active_recorder()
        if recorder is not None:
            recorder.compare(name, tensor)

    @contextmanager
    def frozen(self, *targets: torch.Tensor | torch.nn.Module) -> Iterator[None]:
        """Nothing inside the block may write these tensors, or the parameters and buffers of these modules.

        Raises:
            InplaceError: at the end of the block, with one INP206 finding for each that was written.
            TypeError: if a target is neither a tensor nor a module.
        """
        from pytest_inplace.engine.evidence import Watched
        from pytest_inplace.engine.guard import InplaceError
        from pytest_inplace.engine.quiet import quiet

        lens = self._lens()
        with quiet():
            held = [Watched.of(name, tensor, by_version=True) for name, tensor in _named(targets)]
        lens.watched += held
        try:
            yield
            findings = [_frozen_finding(item) for item in held if item.changed()]
        finally:
            lens.watched = [item for item in lens.watched if item not in held]
        if findings:
            lens.frozen_findings += findings
            raise InplaceError(findings)


def _produced(
    lens: Microscope, raised: BaseException | None
) -> list[tuple[Suspect | BaseException, Finding]]:
    """The findings of a block that has ended, each with the suspect or the error that it is about."""
    from pytest_inplace.engine.guard import InplaceError, native, pending
    from pytest_inplace.engine.replay import findings_of

    told = raised if isinstance(raised, InplaceError) else InplaceError([])
    suspects = [*pending(lens.ledger.suspects.values(), raised), *told.suspects, *lens.changed_now()]
    produced: list[tuple[Suspect | BaseException, Finding]] = []
    for suspect in suspects:
        suspect.needs_extension = False
        produced += [(suspect, finding) for finding in findings_of(lens, [suspect])]
    if raised is not None:
        produced += [(raised, f) for f in [*told.findings, *native(raised)]]
    return produced


def _told_by(raised: BaseException, source: Suspect | BaseException) -> bool:
    """Whether an error is the one that says what is wrong with ``source``."""
    from pytest_inplace.engine.guard import chain

    error = source if isinstance(source, BaseException) else source.error
    return error is not None and any(error is each for each in chain(raised))


def _named(targets: tuple[Any, ...]) -> list[tuple[str, torch.Tensor]]:
    import torch

    from pytest_inplace.engine import names
    from pytest_inplace.reports import call_sites

    frame = call_sites.user_frame(sys._getframe(1))
    named: list[tuple[str, torch.Tensor]] = []
    for i, target in enumerate(targets):
        if isinstance(target, torch.Tensor):
            named.append((names.tensor_name(target, frame) or f"tensor {i}", target))
        elif isinstance(target, torch.nn.Module):
            named += [*target.named_parameters(), *target.named_buffers()]
        else:
            raise TypeError(f"inplace.frozen takes tensors and modules, not {type(target).__name__}")
    return named


def _frozen_finding(item: Any) -> Finding:
    from pytest_inplace.engine import values
    from pytest_inplace.engine.quiet import quiet
    from pytest_inplace.reports import call_sites, fixes

    tensor = item.ref()
    modified = call_sites.resolve(item.writer)
    with quiet():
        diff = values.difference(item.copy, tensor)
    return Finding(
        code="INP206",
        state="confirmed",
        tensor=TensorInfo(
            item.name,
            tuple(tensor.shape),
            values.dtype_name(tensor),
            str(tensor.device),
            values.is_leaf(tensor),
        ),
        modified=modified,
        modified_exact=modified is not None,
        version_saved=item.version,
        version_now=tensor._version,
        values=diff,
        replayed=modified is not None,
        fix=fixes.suggest("INP206", modified),
    )
