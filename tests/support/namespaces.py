"""Machines on this machine: network namespaces, connected by a bridge in that of the tests.

The process that uses them has a network namespace of its own (`enter`), so nothing outside changes.
A machine is cut off from another one by a wrong hardware address for it: packets are lost without
an error, as in a network that has failed.
"""

from __future__ import annotations

import os
import subprocess
import sys

BRIDGE, OWN = "10.77.0.254", 254
ENTERED = "MILLSTREAM_TEST_NAMESPACE"
NOWHERE = "02:00:00:00:00:99"


def ip(*words: str, within: str = "") -> None:
    """Run ip, perhaps in the namespace of a machine."""
    names = ["ip", "netns", "exec", within] if within else []
    subprocess.run([*names, "ip", *words], check=True, capture_output=True)


def enter() -> None:
    """Execute this program again in a network namespace of its own, with the bridge in it. Only
    root can do that."""
    if ENTERED not in os.environ:
        os.environ[ENTERED] = "1"
        words = ["unshare", "--net", "--mount", sys.executable, *sys.orig_argv[1:]]
        os.execvp("unshare", words)
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge")
    ip("addr", "add", f"{BRIDGE}/24", "dev", "br0")
    ip("link", "set", "br0", "up")


class Machine:
    """A network namespace with one address. `name` is unique on this machine."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"ms{os.getpid()}-{number}"
        self.address = f"10.77.0.{number}"
        outside = f"v{number}"
        ip("netns", "add", self.name)
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", outside, "master", "br0", "up")
        ip("addr", "add", f"{self.address}/24", "dev", "eth0", within=self.name)
        ip("link", "set", "lo", "up", within=self.name)
        ip("link", "set", "eth0", "up", within=self.name)

    @property
    def wrapper(self) -> list[str]:
        """The beginning of a command line that runs on this machine."""
        return ["ip", "netns", "exec", self.name]

    def lose(self, address: str) -> None:
        """Send nothing to this address any more."""
        words = ("neigh", "replace", address, "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")
        ip(*words, within=self.name)

    def find(self, address: str) -> None:
        """Send to this address again."""
        ip("neigh", "flush", "to", address, "nud", "permanent", within=self.name)

    def close(self) -> None:
        ip("netns", "del", self.name)


def cut(one: Machine, other: Machine) -> None:
    one.lose(other.address)
    other.lose(one.address)
