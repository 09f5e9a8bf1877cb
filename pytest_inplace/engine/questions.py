"""What a test asks the microscope while it runs: has anything changed, and may it?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from pytest_inplace.engine import values
from pytest_inplace.engine.evidence import Entry
from pytest_inplace.engine.ledger import Ledger, Record, Suspect, latent_suspect
from pytest_inplace.engine.quiet import quiet


class Questions:
    """A part of the microscope, which compares."""

    ledger: Ledger
    entries: dict[int, Entry]

    def _compare(self, entry: Entry, record: Record) -> bool:
        raise NotImplementedError

    def changed_now(self) -> list[Suspect]:
        """A suspect for every save that is still needed and differs from what was saved."""
        found = []
        for ordinal in list(self.entries):
            entry = self.entries[ordinal]
            record = entry.record()
            if record is None or not self._compare(entry, record):
                continue
            suspect = latent_suspect(record)
            if suspect is not None:
                suspect.needs_extension = False
                found.append(suspect)
        return found

    def seen(self, suspects: Iterable[Suspect]) -> None:
        """They are not to be found a second time when their records die."""
        for suspect in suspects:
            entry = self.entries.get(suspect.ordinal) if suspect.ordinal is not None else None
            record = None if entry is None else entry.record()
            if record is not None:
                record.mark_used()

    @contextlib.contextmanager
    def accepting(self) -> Iterator[None]:
        """Accept the writes made inside: what they leave behind counts as what was saved."""
        before = {o: self._state(r) for o, e in self.entries.items() if (r := e.record()) is not None}
        saved = {o: (self.entries[o].version, self.entries[o].digest) for o in before}
        written_before = {*self.ledger.suspects, *(o for o, state in before.items() if state != saved[o])}
        try:
            yield
        finally:
            for key, suspect in list(self.ledger.suspects.items()):
                # A backward pass inside has used them already.
                if suspect.error is None and key not in written_before:
                    del self.ledger.suspects[key]
            for ordinal, entry in self.entries.items():
                record = entry.record()
                if record is None or before.get(ordinal) == self._state(record):
                    continue
                if ordinal not in before and not self._compare(entry, record):
                    continue
                with quiet():
                    entry.copy = values.snapshot(record.tensor)
                entry.values, entry.writer, entry.version_writer = None, None, None
                entry.digest = values.digest(record.tensor)
                record.accept(entry.digest)
                self.ledger.accepted[ordinal] = entry.version = record.tensor._version

    @staticmethod
    def _state(record: Record) -> tuple[int, int | None]:
        return record.tensor._version, values.digest(record.tensor)
