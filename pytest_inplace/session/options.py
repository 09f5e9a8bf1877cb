"""Settings: marker, then command line, then ini file, then default, resolved in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_inplace.reports.findings import rule_for
from pytest_inplace.session import files, parity_options, paths, replay_limit
from pytest_inplace.session.paths import LATENT, REPLAY, PathRule

Latent = Literal["error", "warn", "ignore"]
Replay = Literal["auto", "never"]


@dataclass(frozen=True)
class Settings:
    """What to do for one test, or by default for all of them."""

    check: bool = False
    latent: Latent = "error"
    replay: Replay = "auto"
    replay_limit: float | None = None
    json: Path | None = None
    parity: str | None = None
    sarif: Path | None = None
    html: Path | None = None
    baseline: Path | None = None
    baseline_source: str = "--inplace-baseline"
    update_baseline: bool = False
    paths: tuple[PathRule, ...] = ()
    allow: frozenset[str] = frozenset()
    reason: str | None = None
    replay_off_because: str | None = None

    def accepted_at(self, code: str, path: str) -> bool:
        """Whether findings of this rule are accepted where ``path``, relative to rootdir, holds the write."""
        return any(code in rule.allow and rule.matches(path) for rule in self.paths)


def inplace_safe(
    *,
    check: bool = True,
    allow: str | list[str] | tuple[str, ...] = (),
    reason: str | None = None,
    latent: str | None = None,
    replay: bool | str | None = None,
    parity: str | None = None,
) -> dict[str, Any]:
    """check that no in-place operation in this test corrupts a gradient, with or without --inplace-check.

    check=False leaves the test alone even under --inplace-check. allow lists rules, by code or name,
    whose findings are accepted here, and needs a reason. latent ("error", "warn" or "ignore") and
    replay (True, False, "auto" or "never") override the options of these names; replay=False is for
    a test whose side effects must not happen twice. parity names a device, such as "cuda", on which the
    test is run again and compared; "never" is for a test that is not to be.
    """
    return {
        "check": check, "allow": allow, "reason": reason, "latent": latent, "replay": replay, "parity": parity
    }  # fmt: skip


def marker_help() -> str:
    """The marker's line for ``pytest --markers``: its signature and the docstring above."""
    text = " ".join((inplace_safe.__doc__ or "").split())
    signature = "*, check=True, allow=(), reason=None, latent=None, replay=None, parity=None"
    return f"inplace_safe({signature}): {text}"


def add_options(parser: pytest.Parser) -> None:
    """Declare the command line and ini options. Every default is ``None``, so that we know who spoke."""
    group = parser.getgroup("inplace", "in-place operations that corrupt gradients")
    group.addoption(
        "--inplace-check",
        action="store_true",
        default=None,
        help="check every test for in-place operations that corrupt gradients (ini: inplace_check)",
    )
    group.addoption(
        "--inplace-latent",
        choices=LATENT,
        default=None,
        help="what to do about an overwritten saved tensor over which backward never ran: "
        "error (default), warn or ignore (ini: inplace_latent)",
    )
    group.addoption(
        "--inplace-replay",
        choices=REPLAY,
        default=None,
        help="run a suspicious test a second time to name the line that wrote and the gradients: "
        "auto (default) or never (ini: inplace_replay)",
    )
    group.addoption(
        "--inplace-json",
        metavar="FILE",
        default=None,
        help="write what was checked and found, one record for each test, to FILE (ini: inplace_json)",
    )
    group.addoption(
        "--inplace-suggest",
        action="store_true",
        default=False,
        help="after the run, make up changes of the source for what was found, try them in a copy of the "
        "project, and show them; needs the extra 'suggest'",
    )
    group.addoption(
        "--inplace-apply",
        action="store_true",
        default=False,
        help="as --inplace-suggest, and write the proved changes to the source",
    )
    group.addoption(
        "--inplace-explain",
        metavar="RULE",
        default=None,
        help="print the page about a rule, as INP102: a wrong program, why it is wrong, the fix",
    )
    group.addoption(
        "--inplace-sarif",
        metavar="FILE",
        default=None,
        help="write the findings to FILE as SARIF 2.1.0, for code scanning (ini: inplace_sarif)",
    )
    group.addoption(
        "--inplace-html",
        metavar="FILE",
        default=None,
        help="write one HTML page of all tests and findings to FILE (ini: inplace_html)",
    )
    group.addoption(
        "--inplace-baseline",
        metavar="FILE",
        default=None,
        help="accept the findings that FILE lists, and say which of them are gone (ini: inplace_baseline)",
    )
    group.addoption(
        "--inplace-update-baseline",
        action="store_true",
        default=None,
        help="accept what is found and write it to the file of --inplace-baseline "
        "(ini: inplace_update_baseline)",
    )
    parity_options.add(parser, group)
    replay_limit.add(parser, group)
    parser.addini("inplace_check", "check every test (see --inplace-check)", type="bool", default=None)
    parser.addini("inplace_latent", "error, warn or ignore (see --inplace-latent)", default=None)
    parser.addini("inplace_replay", "auto or never (see --inplace-replay)", default=None)
    parser.addini("inplace_json", "path of the JSON report, from rootdir (see --inplace-json)", default=None)
    parser.addini("inplace_html", "path of the HTML page, from rootdir (see --inplace-html)", default=None)
    parser.addini(
        "inplace_sarif", "path of the SARIF report, from rootdir (see --inplace-sarif)", default=None
    )
    parser.addini(
        "inplace_baseline", "path of the baseline, from rootdir (see --inplace-baseline)", default=None
    )
    parser.addini(
        "inplace_update_baseline",
        "write the baseline (see --inplace-update-baseline)",
        type="bool",
        default=None,
    )
    pytest.Config._add_verbosity_ini(
        parser, "inplace", "how much the summary of in-place findings shows, as -v counts it"
    )
    parser.addini(
        "inplace_paths",
        "settings for some files, one line each: PATH check=true|false latent=... replay=... "
        'allow=CODE,CODE reason="..."',
        type="linelist",
        default=[],
    )


def resolve(config: pytest.Config) -> Settings:
    """The settings for the whole run.

    Raises:
        pytest.UsageError: for a value that is not allowed; it says where the value came from.
    """
    try:
        config.get_verbosity("inplace")
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{_source(config, 'verbosity_inplace')}: {error}") from None
    check = config.getoption("inplace_check")
    if check is None:
        check = _ini_bool(config, "inplace_check")
    latent = config.getoption("inplace_latent") or _ini_choice(config, "inplace_latent", LATENT)
    replay = config.getoption("inplace_replay") or _ini_choice(config, "inplace_replay", REPLAY)
    baseline, baseline_source = _file(config, "inplace_baseline")
    update = config.getoption("inplace_update_baseline")
    if update is None:
        update = _ini_bool(config, "inplace_update_baseline")
    if update and baseline is None:
        raise pytest.UsageError("--inplace-update-baseline needs --inplace-baseline=FILE")
    json = _report_file(config, "inplace_json")
    if update and baseline is not None and not hasattr(config, "workerinput"):
        files.check_writable(baseline, baseline_source, leave=False)
    parity = parity_options.resolve(config, _source(config, parity_options.KEY))
    settings = Settings(
        check=bool(check) or parity is not None,
        parity=parity,
        latent=latent or "error",
        replay=replay or "auto",
        replay_limit=replay_limit.resolve(config, _source(config, replay_limit.KEY)),
        json=json,
        sarif=_report_file(config, "inplace_sarif"),
        html=_report_file(config, "inplace_html"),
        baseline=baseline,
        baseline_source=baseline_source,
        update_baseline=bool(update),
        paths=paths.parse(config.getini("inplace_paths") or (), _source(config, "inplace_paths")),
    )
    _check_distinct(config, settings)
    if settings.replay == "auto" and (config.getoption("usepdb", False) or config.getoption("trace", False)):
        return dataclasses.replace(settings, replay="never", replay_off_because="off under the debugger")
    return settings


def _source(config: pytest.Config, key: str) -> str:
    override = any(str(o).partition("=")[0] == key for o in config.getoption("override_ini", None) or ())
    return f"-o {key}" if override else f"{key} in {config.inipath or 'the ini file'}"


def _ini_bool(config: pytest.Config, key: str) -> bool:
    try:
        return bool(config.getini(key))
    except (ValueError, pytest.UsageError) as error:  # pytest's own words name neither the key nor the file
        raise pytest.UsageError(f"{_source(config, key)}: {error}") from None


def _ini_choice(config: pytest.Config, key: str, choices: tuple[str, ...]) -> Any:
    value = config.getini(key)
    if value in (None, ""):
        return None
    if value not in choices:
        raise pytest.UsageError(f"{_source(config, key)}: {value!r} is not one of {', '.join(choices)}")
    return value


def _file(config: pytest.Config, name: str) -> tuple[Path | None, str]:
    """A path from the command line or, from rootdir, the ini file; and where it came from."""
    option, ini = config.getoption(name), config.getini(name)
    if option:
        return Path(config.invocation_params.dir, option), "--" + name.replace("_", "-")
    return (Path(config.rootpath, ini) if ini else None), _source(config, name)


def _report_file(config: pytest.Config, name: str) -> Path | None:
    path, source = _file(config, name)
    if path is not None and not hasattr(config, "workerinput"):
        files.check_writable(path, source)
    return path


def _check_distinct(config: pytest.Config, settings: Settings) -> None:
    """One file cannot hold two reports, and a report is not to overwrite the baseline."""
    seen: dict[Path, str] = {}
    for name in ("json", "sarif", "html", "baseline"):
        path = getattr(settings, name)
        if path is None or not (path.is_file() or not path.exists()):  # a device may be named twice
            continue
        source = _file(config, f"inplace_{name}")[1]
        other = seen.setdefault(path.resolve(), source)
        if other != source:
            raise pytest.UsageError(f"{other} and {source} name the same file: {path}")


def for_item(item: pytest.Item, settings: Settings) -> Settings:
    """The settings for one test: those of the run, overridden for its path, then by its markers.

    Raises:
        pytest.UsageError: for a marker with arguments that it does not take.
    """
    if settings.paths:
        settings = _by_path(item, settings)
    for marker in reversed(list(item.iter_markers("inplace_safe"))):
        settings = _with_marker(item, marker, settings)
    if "inplace" in getattr(item, "fixturenames", ()) and item.get_closest_marker("inplace_safe") is None:
        settings = dataclasses.replace(settings, check=True)
    return settings


def _by_path(item: pytest.Item, settings: Settings) -> Settings:
    """Later lines override earlier ones; what they accept adds up."""
    path = item.nodeid.partition("::")[0]
    for rule in settings.paths:
        if rule.matches(path):
            changes = dict(rule.changes)
            if settings.replay_off_because == "off under the debugger":
                changes = {k: v for k, v in changes.items() if not k.startswith("replay")}
            elif changes.get("replay") == "auto":
                changes["replay_off_because"] = None
            settings = dataclasses.replace(settings, allow=settings.allow | rule.allow, **changes)
    return settings


def _with_marker(item: pytest.Item, marker: pytest.Mark, settings: Settings) -> Settings:
    def wrong(problem: str) -> pytest.UsageError:
        return pytest.UsageError(f"{item.nodeid}: @pytest.mark.inplace_safe: {problem}")

    try:
        given = inplace_safe(*marker.args, **marker.kwargs)
    except TypeError as error:
        known = "it takes check, allow, reason, latent, replay and parity, by keyword"
        # Python 3.13 adds what may have been meant, which the list of all that it takes says better.
        what = str(error).removeprefix("inplace_safe() ").partition(". Did you mean")[0]
        raise wrong(f"{what}; {known}") from None
    changes: dict[str, Any] = {
        "check": _checked(given["check"], lambda v: isinstance(v, bool), "check", wrong)
    }
    allow = (given["allow"],) if isinstance(given["allow"], str) else given["allow"]
    if not isinstance(allow, list | tuple | set | frozenset):
        raise wrong(f"allow={allow!r} is not a list of rules")
    if allow:
        try:
            changes["allow"] = settings.allow | {rule_for(key).code for key in allow}
        except KeyError as error:
            raise wrong(error.args[0]) from None
        if not isinstance(given["reason"], str) or not given["reason"].strip():
            raise wrong("allow needs a reason=..., a text that says why")
    if given["reason"] is not None:
        changes["reason"] = given["reason"]
    if given["latent"] is not None:
        changes["latent"] = _checked(given["latent"], lambda v: v in LATENT, "latent", wrong, LATENT)
    replay = given["replay"]
    if replay is not None:
        replay = {True: "auto", False: "never"}.get(replay, replay) if isinstance(replay, bool) else replay
        replay = _checked(replay, lambda v: v in REPLAY, "replay", wrong, ("True", "False", *REPLAY))
        if replay == "never":
            changes.update(replay="never", replay_off_because="off by inplace_safe(replay=False)")
        elif settings.replay_off_because != "off under the debugger":
            changes.update(replay="auto", replay_off_because=None)
    parity = given["parity"]
    if parity is not None:
        _checked(parity, parity_options.is_device, "parity", wrong, ("a device", "never"))
        changes["parity"] = None if parity == "never" else parity
    return dataclasses.replace(settings, **changes)


def _checked(
    value: Any,
    fits: Callable[[Any], bool],
    name: str,
    wrong: Callable[[str], pytest.UsageError],
    choices: tuple[str, ...] = ("True", "False"),
) -> Any:
    try:
        if fits(value):
            return value
    except TypeError:
        pass
    raise wrong(f"{name}={value!r} is not one of {', '.join(choices)}")


def header(settings: Settings) -> str:
    """The effective settings, for the header of the run."""
    check = "on" if settings.check else "marked tests"
    because = f" ({settings.replay_off_because})" if settings.replay_off_because else ""
    text = f"inplace: check={check}, latent={settings.latent}, replay={settings.replay}{because}"
    if settings.replay_limit is not None:
        text += f", replay-limit={settings.replay_limit:g}"
    for name in ("parity", "json", "sarif", "html", "baseline"):
        if (path := getattr(settings, name)) is not None:
            text += f", {name}={path}"
    return f"{text} (updating)" if settings.update_baseline else text


def active(settings: Settings) -> bool:
    """Whether anything was asked for beyond what markers ask for."""
    files_asked_for = (settings.json, settings.sarif, settings.html, settings.baseline)
    return settings.check or any(path is not None for path in files_asked_for)
