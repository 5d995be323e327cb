"""Settings of calls over the internet: the section ``rtc`` of the tree. docs/calls.md tells when which is needed."""

from __future__ import annotations

import ipaddress
import re

from pydantic import Field, field_validator, model_validator

from voicechat.config_section import Section, StrList


class RtcSettings(Section):
    """Calls over WebRTC: which addresses and ports they use, and which STUN and TURN servers help."""

    stun: StrList = Field(
        default=(), description="STUN servers, such as stun:stun.example.org:3478; clients get them too"
    )
    turn: StrList = Field(
        default=(),
        description="TURN servers, such as turn:HOST:3478?transport=tcp or turns:HOST:5349; clients get them",
    )
    turn_username: str | None = Field(
        default=None, description="of turn_credential; of turn_secret, a part of the name"
    )
    turn_credential: str | None = Field(default=None, description="the password of turn_username")
    turn_secret: str | None = Field(
        default=None,
        description="secret shared with TURN servers (coturn: static-auth-secret); makes credentials for a day",
    )
    public_address: StrList = Field(
        default=(), description="addresses at which a 1:1 NAT shows this machine; auto: ask rtc.stun once at start"
    )
    interfaces: StrList = Field(
        default=(), description="names (eth0), addresses or networks (10.0.0.0/8) that calls may use; empty: all"
    )
    ports: str = Field(default="", description="UDP ports of calls: 40000-40100, or one that all share; empty: any")
    relay_only: bool = Field(default=False, description="only addresses that TURN servers lend, for server and clients")
    ipv6: bool = Field(default=True, description="offer IPv6 addresses too")

    @field_validator("ports", mode="before")
    @classmethod
    def _ports(cls, value: object) -> str:
        text = str(value or "").replace(" ", "")
        if text and port_range(text) is None:
            raise ValueError("not a port like 3478, nor a range like 40000-40100")
        return text

    @field_validator("public_address")
    @classmethod
    def _addresses(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if value != "auto":
                ipaddress.ip_address(value)
        return values

    @model_validator(mode="after")
    def _consistent(self) -> RtcSettings:
        for name, urls, pattern in (("stun", self.stun, r"stun:\S+"), ("turn", self.turn, r"turns?:\S+")):
            for url in urls:
                if re.fullmatch(pattern, url) is None:
                    raise ValueError(f"rtc.{name}: {url!r} is no address like {name}:HOST:3478")
        if self.turn and self.turn_secret is None and (self.turn_username is None or self.turn_credential is None):
            raise ValueError(
                "rtc.turn is set, but neither rtc.turn_secret nor rtc.turn_username and rtc.turn_credential"
            )
        if self.relay_only and not self.turn:
            raise ValueError("rtc.relay_only is set, but there is no rtc.turn")
        if "auto" in self.public_address and not self.stun:
            raise ValueError("rtc.public_address is auto, but there is no rtc.stun to ask")
        return self


def port_range(text: str) -> tuple[int, int] | None:
    """First and last port of ``rtc.ports``; (0, 0) if it is empty, None if it can't be read."""
    if not text:
        return 0, 0
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return (first, last) if 0 < first <= last <= 65_535 else None
