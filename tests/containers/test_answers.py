"""Where engines are looked for."""

from pathlib import Path

import pytest

from containers import answers, shaping


def test_sockets() -> None:
    """DOCKER_HOST wins; without it the usual place comes before ours; another machine is nowhere here."""
    assert answers.sockets({}) == (answers.USUAL, answers.OURS)
    assert answers.sockets({"DOCKER_HOST": "unix:///somewhere"}) == ("/somewhere",)
    assert answers.sockets({"DOCKER_HOST": "tcp://192.0.2.1:2376"}) == ()


def test_no_answer(tmp_path: Path) -> None:
    """A place without an engine is named, with why nothing answers there."""
    with pytest.raises(answers.NoAnswer, match=r"nothing \(No such file"):
        answers.find({"DOCKER_HOST": f"unix://{tmp_path}/nothing"})
    with pytest.raises(answers.NoAnswer, match="another machine"):
        answers.find({"DOCKER_HOST": "ssh://192.0.2.1"})


@pytest.mark.parametrize(
    ("option", "module", "there"),
    [("=y", False, True), ("=m", True, True), ("=m", False, False), (" is not set", True, False), (None, True, True)],
)
def test_netem(tmp_path: Path, option: str | None, module: bool, there: bool) -> None:
    """A kernel has netem if it was built in, or as a module that is installed."""
    (tmp_path / "boot").mkdir()
    if option is not None:
        (tmp_path / "boot" / "config-6.1").write_text(f"CONFIG_NET=y\nCONFIG_NET_SCH_NETEM{option}\n")
    modules = tmp_path / "lib" / "modules" / "6.1"
    modules.mkdir(parents=True)
    (modules / "modules.dep").write_text("kernel/net/sched/sch_netem.ko.xz:\n" if module else "kernel/other.ko:\n")
    assert shaping.netem(tmp_path, "6.1") is there


def test_netem_unknown(tmp_path: Path) -> None:
    """Where nothing tells, netem is neither there nor missing."""
    assert shaping.netem(tmp_path, "6.1") is None
