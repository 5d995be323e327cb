"""Calls over networks that are not one cable: a 1:1 NAT and a firewall, IPv6 alone, and no UDP at all.

Namespaces with cables between them, routes, and Debian's nftables and coturn; nothing leaves the machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import needed, netns
from tests.netns import Namespace
from tests.web.conftest import ROOT, DoubleServers
from voicechat.calls import tls_context
from voicechat.config import load_settings

PUBLIC = "203.0.113.9"
PORTS = (41_000, 41_003)
ANSWER = "word " * 6


@dataclass(frozen=True)
class Place:
    """Where a server runs, and the way that a client has to it."""

    client: Namespace
    router: Namespace
    server: Namespace


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A client, a router and a server behind it, on two cables. Nothing is passed on yet."""
    with contextlib.ExitStack() as stack:
        made = Place(*(stack.enter_context(netns.fresh()) for _ in range(3)))
        if made.client.name is None or made.router.name is None or made.server.name is None:
            needed.missing("a network namespace, which root can make,")
        netns.join(made.client, made.router, ["10.7.0.2/24"], ["10.7.0.1/24"])
        netns.join(made.router, made.server, ["10.8.0.1/24"], ["10.8.0.2/24"])
        made.server.run("ip", "route", "add", "default", "via", "10.8.0.1")
        yield made


@contextlib.contextmanager
def server(space: Namespace, *options: str) -> Iterator[int]:
    """A server in ``space``; its port for HTTP."""
    servers = DoubleServers(space)
    try:
        yield int(servers("--answer", ANSWER, *options).rpartition(":")[2])
    finally:
        servers.stop()


def call(space: Namespace, *words: str, **environment: str) -> dict:
    """What came of a call from ``space``; see :mod:`tests.web.placed_client`."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    argv = ["env", *variables, sys.executable, "-m", "tests.web.placed_client", *words]
    done = subprocess.run(space.command(argv), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["told"] and found["audible_s"] == pytest.approx(1.8, abs=0.3)
    return found


def rules(space: Namespace, text: str) -> None:
    """Filter and rewrite what passes through ``space`` by nftables' rules, and by no others."""
    nft = needed.program("nft")
    argv = space.command([nft, "-f", "-"])
    done = subprocess.run(argv, input=f"flush ruleset\n{text}", text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_server_behind_a_one_to_one_nat_whose_firewall_opens_a_few_ports(place):
    with server(place.server, "--host", "0.0.0.0", "--ports", *map(str, PORTS), "--public-address", PUBLIC) as port:
        place.client.run("ip", "route", "replace", f"{PUBLIC}/32", "via", "10.7.0.1")
        place.router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        rules(
            place.router,
            f"""
            table ip nat {{
                chain before {{ type nat hook prerouting priority -100; ip daddr {PUBLIC} dnat to 10.8.0.2; }}
                chain after {{ type nat hook postrouting priority 100; ip saddr 10.8.0.2 snat to {PUBLIC}; }}
            }}
            table ip filter {{
                chain pass {{
                    type filter hook forward priority 0; policy drop;
                    tcp dport {port} accept
                    udp dport {PORTS[0]}-{PORTS[1]} ct original ip daddr {PUBLIC} accept
                    ct direction reply accept
                }}
            }}
            """,
        )
        found = call(place.client, f"http://{PUBLIC}:{port}")
    told = re.findall(r"^a=candidate:\S+ 1 udp \d+ (\S+) (\d+) typ (\w+)", found["answer"], flags=re.MULTILINE)
    assert {(host, kind) for host, _, kind in told} == {("10.8.0.2", "host"), (PUBLIC, "srflx")}
    assert all(PORTS[0] <= int(number) <= PORTS[1] for _, number, _ in told)
    assert found["remote"][0] == PUBLIC and PORTS[0] <= found["remote"][1] <= PORTS[1]


def test_ipv6_alone_with_its_least_mtu_and_no_fragments():
    with netns.fresh() as client, netns.fresh() as other:
        if client.name is None or other.name is None:
            needed.missing("a network namespace, which root can make,")
        netns.join(client, other, ["fd07::2/64"], ["fd07::1/64"], mtu=1280)
        rules(
            client,
            """
            table ip6 raw {
                chain pre { type filter hook prerouting priority -450; exthdr frag exists drop; }
            }
            """,
        )
        with server(other, "--host", "fd07::1") as port:
            found = call(client, f"http://[fd07::1]:{port}")
    assert found["remote"][0] == "fd07::1"
    assert "10.8" not in found["answer"]


@pytest.mark.parametrize("scheme", ["turn", "turns"])
def test_a_client_whose_network_lets_no_udp_out(place, tmp_path, scheme):
    """TURN over TCP, and over TLS. The router does not pass anything on but HTTP; coturn runs on it."""
    overrides = ["server.https=true", "server.host=10.7.0.1", f"data_dir={tmp_path}"]
    tls_context(load_settings(overrides=overrides, environ={}))
    certificate, key = (tmp_path / "tls" / name for name in ("certificate.pem", "key.pem"))
    rules(
        place.router,
        """
        table ip filter {
            chain pass { type filter hook forward priority 0; policy drop; ip protocol tcp accept; }
            chain in { type filter hook input priority 0; iif != "lo" ip saddr 10.7.0.0/24 ip protocol udp drop; }
        }
        """,
    )
    place.router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    place.client.run("ip", "route", "replace", "10.8.0.0/24", "via", "10.7.0.1")
    options = ["-n", "--listening-ip=10.7.0.1", "--relay-ip=10.8.0.1", "-p", "3478", "--tls-listening-port=5349"]
    options += ["--lt-cred-mech", "--user=u:secret", "--realm=test", f"--cert={certificate}", f"--pkey={key}"]
    options += ["--no-cli", "--no-dtls", "--log-file=stdout", "--pidfile=/dev/null"]
    with server(place.server, "--host", "0.0.0.0") as port, coturn(place.router, options):
        url = "turn:10.7.0.1:3478?transport=tcp" if scheme == "turn" else "turns:10.7.0.1:5349?transport=tcp"
        found = call(place.client, f"http://10.8.0.2:{port}", url, "u", "secret", SSL_CERT_FILE=str(certificate))
    assert found["local"] == ["relay", "10.8.0.1"]
    assert found["remote"][0] == "10.8.0.2"


@contextlib.contextmanager
def coturn(space: Namespace, options: list[str]) -> Iterator[None]:
    """A TURN server, once it listens."""
    quiet = subprocess.DEVNULL
    argv = space.command([needed.program("turnserver"), *options])
    process = subprocess.Popen(argv, stdout=quiet, stderr=quiet)
    try:
        for _ in range(300):
            tables = Path(f"/proc/{process.pid}/net/tcp")
            if process.poll() is None and re.search(r":14E5 00000000:0000 0A", tables.read_text()):
                break
            assert process.poll() is None, "coturn does not start"
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()
