"""The systemd user unit of a daemon.

It restarts whatever ends, except exit code 4: an identity that is in use elsewhere, or belongs to another machine,
does not get better by trying. The rest of the unit takes away what the daemon never needs.
"""

from __future__ import annotations

from posthouse.cli.daemon.service import ServiceTerms

_UNIT = """\
[Unit]
Description=posthouse daemon of mesh {mesh}
After=network.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{environment}Restart=always
RestartSec=2
RestartPreventExitStatus=4
KillSignal=SIGTERM
TimeoutStopSec=30
LimitCORE=0
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={writes}
ProtectControlGroups=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=default.target
"""


def systemd_unit(terms: ServiceTerms) -> str:
    """Return the text of the unit."""
    variables = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in terms.environment.items())
    return _UNIT.format(
        mesh=_plain(terms.mesh),
        command=" ".join(_argument(each) for each in terms.command),
        environment=variables,
        writes=" ".join(_quoted(str(each)) for each in terms.writes),
    )


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return one word as systemd reads it: whole, and without specifiers."""
    escaped = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _argument(text: str) -> str:
    return _quoted(text).replace("$", "$$")
