"""The ``inplace`` fixture: what a test can say to, and ask of, the check that watches it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_inplace.findings import Finding, TensorInfo, rule_for

if TYPE_CHECKING:
    import torch

    from pytest_inplace.ledger import Suspect
    from pytest_inplace.microscope import Microscope


class Inplace:
    """The check of the running test. Get it as the fixture ``inplace``."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def _lens(self) -> Microscope:
        """The microscope of this run of the test, the first or the second."""
        import torch  # noqa: F401 - a test that has not imported torch yet is watched from here on

        from pytest_inplace.watch import active_lens

        lens = active_lens()
        if lens is None:
            raise RuntimeError("inplace: the check of this test is not running")
        return lens  # type: ignore[no-any-return]

    @property
    def findings(self) -> list[Finding]:
        """What has been found in this test so far."""
        from pytest_inplace.replay import findings_of

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
        earlier = lens.ledger.take_suspects()
        raised: BaseException | None = None
        try:
            yield
        except (RuntimeError, AssertionError) as error:
            raised = error
        produced = self._produced(lens, raised)
        lens.ledger.suspects.update({id(s): s for s in earlier})
        if any(finding.code == wanted.code for finding in produced):
            return
        if raised is not None:
            raise raised
        others = f"; it did find {', '.join(sorted({f.code for f in produced}))}" if produced else ""
        pytest.fail(f"DID NOT FIND {wanted.code} {wanted.name}{others}")

    def _produced(self, lens: Microscope, raised: BaseException | None) -> list[Finding]:
        from pytest_inplace.guarding import InplaceError, pending
        from pytest_inplace.native import explain
        from pytest_inplace.replay import findings_of

        if isinstance(raised, InplaceError):
            lens.frozen_findings.clear()
            return raised.findings
        suspects = [*pending(lens.ledger.take_suspects(), raised), *lens.changed_now()]
        for suspect in suspects:
            suspect.needs_extension = False
            if suspect.ordinal is not None and (entry := lens.entries.get(suspect.ordinal)):
                record = entry.record()
                if record is not None:  # seen and expected: not to be found a second time when it dies
                    record.mark_used()
        findings = findings_of(lens, suspects)
        native = explain(raised) if raised is not None else None
        return findings if native is None else [*findings, native]

    def check(self) -> None:
        """Judge everything saved so far, now: fail here if a tensor that backward still needs has changed.

        Raises:
            InplaceError: with the findings.
        """
        from pytest_inplace.guarding import InplaceError
        from pytest_inplace.replay import findings_of

        lens = self._lens()
        suspects: list[Suspect] = [*lens.ledger.suspects.values(), *lens.changed_now()]
        findings = findings_of(lens, suspects, "judged by inplace.check()")
        if findings:
            lens.ledger.suspects.update({s.ordinal: s for s in suspects})
            raise InplaceError(findings)

    @contextmanager
    def frozen(self, *targets: torch.Tensor | torch.nn.Module) -> Iterator[None]:
        """Nothing inside the block may write these tensors, or the parameters and buffers of these modules.

        Raises:
            InplaceError: at the end of the block, with one INP206 finding for each that was written.
            TypeError: if a target is neither a tensor nor a module.
        """
        from pytest_inplace.evidence import Watched
        from pytest_inplace.guarding import InplaceError
        from pytest_inplace.quiet import quiet

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


def _named(targets: tuple[Any, ...]) -> list[tuple[str, torch.Tensor]]:
    import torch

    from pytest_inplace import call_sites, names

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
    from pytest_inplace import call_sites, fixes, values
    from pytest_inplace.quiet import quiet

    tensor = item.ref()
    modified = call_sites.resolve(item.writer)
    with quiet():
        diff = values.difference(item.copy, tensor)
    return Finding(
        code="INP206",
        state="confirmed",
        tensor=TensorInfo(
            item.name, tuple(tensor.shape), values.dtype_name(tensor), str(tensor.device), tensor.is_leaf
        ),
        modified=modified,
        modified_exact=modified is not None,
        version_saved=item.version,
        version_now=tensor._version,
        values=diff,
        replayed=modified is not None,
        fix=fixes.suggest("INP206", modified),
    )
