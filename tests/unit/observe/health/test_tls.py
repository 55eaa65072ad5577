"""Which certificates an https check trusts."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path

import pytest
from hub_testkit.simulator.identity import AUTHORITY

from hub.decide.checks import Check
from hub.observe.health import tls
from hub.observe.health.tls import FILE_CHECK, Trust, TrustError, Trusts, context, trust_of


def test_insecure_checks_share_one_trust() -> None:
    """Checks with ``insecure`` have equal trust even if their CA files differ."""
    assert trust_of(Check("https", 1, insecure=True, ca="/a")) == Trust(insecure=True)
    assert context(Trust(insecure=True), "/").verify_mode is ssl.CERT_NONE


def test_a_file_of_certificates_is_all_that_is_trusted(tmp_path: Path) -> None:
    """With a CA file, the system's certificates are not trusted."""
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    made = context(Trust(str(tmp_path / "ca.pem")), str(tmp_path))
    assert len(made.get_ca_certs()) == 1
    assert made.check_hostname


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("nothing", "contains no certificate in PEM format"),
        ("", "contains no certificate in PEM format"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    """The error names the file and the reason, but never quotes the file's content."""
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(TrustError, match=message):
        context(Trust(str(tmp_path / "ca.pem")), str(tmp_path))


@pytest.mark.parametrize(("more", "read"), [(0, True), (1, False)])
def test_a_file_may_have_a_mebibyte(tmp_path: Path, *, more: int, read: bool) -> None:
    """A file of 1 MiB is read; one more byte is an error."""
    path = tmp_path / "ca.pem"
    path.write_text(AUTHORITY + "#" * (1024 * 1024 - len(AUTHORITY) + more))
    if read:
        assert len(context(Trust(str(path)), str(tmp_path)).get_ca_certs()) == 1
    else:
        with pytest.raises(TrustError, match="larger than 1048576 bytes"):
            context(Trust(str(path)), str(tmp_path))


def test_a_file_outside_the_credentials_folder_is_not_read(tmp_path: Path) -> None:
    """A file outside the folder is refused, by its path and through a symlink."""
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.pem").symlink_to(tmp_path / "ca.pem")
    for path in (tmp_path / "ca.pem", inside / "link.pem", inside / ".." / "ca.pem"):
        with pytest.raises(TrustError, match="lies outside"):
            context(Trust(str(path)), str(inside))


async def test_a_file_that_no_check_asks_for_is_not_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once no check uses a file, a missing file is no longer logged."""
    trusts, trust = Trusts(str(tmp_path)), Trust(str(tmp_path / "ca.pem"))
    trusted = trusts.get(trust)
    await trusts.refresh(0.0)
    assert "no such file" in trusts.problem(trust)
    del trusted
    caplog.clear()
    await trusts.refresh(FILE_CHECK)
    assert (trusts.problem(trust), caplog.records) == ("", [])


async def test_a_replaced_file_is_read_again_and_a_bad_one_is_not_used(tmp_path: Path) -> None:
    """If the new file is bad, the last good context stays in force and the problem is shown."""
    path = tmp_path / "ca.pem"
    trusts = Trusts(str(tmp_path))
    trusted = trusts.get(Trust(str(path)))
    await trusts.refresh(0.0)
    assert trusted.context is None
    assert "no such file" in trusted.problem
    path.write_text(AUTHORITY)
    await trusts.refresh(FILE_CHECK)
    first = trusted.context
    assert first is not None
    assert not trusted.problem
    path.write_text("broken")
    await trusts.refresh(2 * FILE_CHECK)
    assert trusted.context is first
    assert "no certificate" in trusted.problem


async def test_symlink_loop_affects_only_its_file(tmp_path: Path) -> None:
    """A symlink loop is a problem of that file only."""
    (tmp_path / "loop.pem").symlink_to("loop.pem")
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    with pytest.raises(TrustError, match=r"loop\.pem: too many levels of symbolic links"):
        context(Trust(str(tmp_path / "loop.pem")), str(tmp_path))
    trusts = Trusts(str(tmp_path))
    bad, good = (trusts.get(Trust(str(tmp_path / name))) for name in ("loop.pem", "ca.pem"))
    await trusts.refresh(0.0)
    assert "symbolic links" in bad.problem
    assert good.context is not None


async def test_a_mount_that_does_not_answer_hurts_no_other_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A hung mount is logged once and keeps the last context; the problem ends when the mount answers."""
    answers, look = threading.Event(), tls.stamp
    answers.set()
    path = tmp_path / "ca.pem"
    path.write_text(AUTHORITY)

    def slow(trust: Trust) -> tuple[int, ...]:
        if trust.ca:
            answers.wait(10)
        return look(trust)

    monkeypatch.setattr(tls, "READ_TIMEOUT", 0.3)
    monkeypatch.setattr(tls, "stamp", slow)
    trusts = Trusts(str(tmp_path))
    hung = trusts.get(Trust(str(path)))
    await trusts.refresh(0.0)
    first = hung.context
    answers.clear()
    try:
        async with asyncio.timeout(5):
            await trusts.refresh(FILE_CHECK)
            other = trusts.get(Trust(insecure=True))
            await trusts.refresh(2 * FILE_CHECK)
        assert (hung.context, hung.problem) == (first, f"health.ca {path}: does not answer within 0.3 s")
        assert other.context is not None
        assert len(caplog.records) == 1
    finally:
        answers.set()
    async with asyncio.timeout(5):
        while hung.reader._running is not None:  # noqa: ASYNC110 - set by the loop
            await asyncio.sleep(0.01)
    await trusts.refresh(3 * FILE_CHECK)
    assert hung.context is not None
    assert not hung.problem
