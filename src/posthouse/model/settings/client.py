"""Settings of the client: which relay commands and agents speak to, and how."""

from __future__ import annotations

from posthouse.model.settings.setting import Setting

CLIENT: tuple[Setting, ...] = (
    Setting(
        "client.relay",
        str,
        "127.0.0.1:7420",
        "Address of the relay, for meshes that were not joined elsewhere: HOST:PORT or a URL.",
    ),
    Setting("client.tls_ca", str, None, "File with certificates of authorities to believe besides the system's."),
    Setting("client.allow_plain", bool, False, "Speak to other machines without TLS, inside a network you trust."),
    Setting("client.timeout_s", float, 60.0, "How long to wait for the answer to a publish.", "s", 0.1, 86_400),
)
