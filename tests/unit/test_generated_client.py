"""The modules of the client for threads are written from those for asyncio."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts/client_for_threads.py"
    spec = importlib.util.spec_from_file_location("client_for_threads", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with the client's sources."""
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / "client", tmp_path / "client", ignore=ignored)
    return tmp_path


def test_generated_modules_are_current(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run scripts/client_for_threads.py"
    for name in script.MODULES:
        first = (ROOT / "client/threads" / f"{name}.py").read_text().partition("\n")[0]
        assert first.startswith("# Generated from client/aio/")


def test_a_changed_line_of_the_source_fails_the_check(
    script: ModuleType, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copied / "client/aio/writer.py"
    text = source.read_text()
    line = "            await self._runner.run(self._state.close())\n"
    assert line in text
    source.write_text(text.replace(line, line + "            await self.heartbeat()\n"))
    assert script.main(["--check"], copied) == 1
    assert capsys.readouterr().err.startswith("client/threads/writer.py is not current")
    assert script.main([], copied) == 0
    assert "            self.heartbeat()\n" in (copied / "client/threads/writer.py").read_text()
    assert script.main(["--check"], copied) == 0


def test_a_new_command_reaches_both_apis_and_pipelines(script: ModuleType, copied: Path) -> None:
    source = copied / "client/aio/commands.py"
    method = '''    async def tnew(self, key: Key) -> int:
        """Count.

        >>> (await ms.tnew("k")).bit_length()
        1
        """
        return await self._ask(requests.tseal(key, (), False))

'''
    before, mark, after = source.read_text().partition("    async def tseal(")
    source.write_text(before + method + mark + after)
    assert script.main([], copied) == 0
    written = (copied / "client/threads/commands.py").read_text()
    assert "    def tnew(self, key: Key) -> int:\n" in written
    assert '        >>> ms.tnew("k").bit_length()\n' in written
    assert "        return self._ask(requests.tseal(key, (), False))\n" in written
    queued = (copied / "client/queued.py").read_text()
    assert "    tnew = queued(StreamCommands.tnew)\n" in queued


@pytest.mark.parametrize(
    ("asyncio", "threads"),
    [
        ("await f(1)", "f(1)"),
        ('x = (await f(")"))["n"]', 'x = f(")")["n"]'),
        ("(await (await f()).g(b[0]))", "f().g(b[0])"),
        ("f(await g())", "f(g())"),
        ("(await f() or 1)", "(f() or 1)"),
        ("(await f(), await g())", "(f(), g())"),
        ("awaited = 1", "awaited = 1"),
    ],
)
def test_await_is_removed_with_its_parentheses(
    script: ModuleType, asyncio: str, threads: str
) -> None:
    assert script.without_await(asyncio) == threads


def test_statements_for_asyncio_only_are_left_out(script: ModuleType) -> None:
    text = "if a:  # asyncio only\n    b()\nelse:\n    c()\nd()\n"
    assert script.without_asyncio_only(text) == "d()\n"
    with pytest.raises(ValueError, match="first line"):
        script.without_asyncio_only("d(\n    1,  # asyncio only\n)\n")
