"""Which findings count, beside the error of a test that fails and beside each other."""

from __future__ import annotations

from pytest_inplace.reports.findings import Finding


def moot(finding: Finding, error: BaseException | None) -> bool:
    """Whether a test that failed by itself gives no reason to claim this.

    Its graphs may be unused because of the failure, and a backward pass that raised cannot be judged: that
    a gradient was written in place says little, for that is normal where nobody shares it.
    """
    from pytest_inplace.engine.guard import InplaceError, chain

    if error is None or any(isinstance(each, InplaceError) for each in chain(error)):
        return False
    unused = finding.code == "INP202" and finding.state == "latent"
    return unused or (finding.code == "INP203" and not finding.gradients_judged)


def is_confirmed_by(latent: Finding, finding: Finding) -> bool:
    same = (
        latent.code == finding.code and latent.saved == finding.saved and latent.modified == finding.modified
    )
    return same and latent.state == "latent" and finding.state == "confirmed"
