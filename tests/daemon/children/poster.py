"""A local program that posts one request and tells the status: `python poster.py SOCKET BODY`; it starts quickly."""

from __future__ import annotations

import socket
import sys


def main(path: str, body: str) -> None:
    data = body.encode()
    head = b"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(30)
        peer.connect(path)
        sys.stdin.readline()  # all of them begin together
        peer.sendall(head + data)
        answer = b""
        while part := peer.recv(65_536):
            answer += part
    sys.stdout.write(answer.split(b" ", 2)[1].decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
