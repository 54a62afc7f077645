"""`client.py ADDRESS SCRIPT ...`: runs a script in a process that the server forks; without a server, as Python runs it.

It hands on its files and signals, and ends as that process ends. It is started with every stage, so that it imports little.
"""

import json
import os
import select
import signal
import socket
import sys

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback, while no process is forked yet
    address, *words = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    request = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    try:
        connection.connect(address)
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(request)
        is_forked = connection.recv(1) == b"y"
    except OSError:
        is_forked = False
    if not is_forked:
        os.execv(sys.executable, [sys.executable, *words])
    connection.setblocking(False)
    signal.set_wakeup_fd(connection.fileno())  # sends each signal's number at once; a handler would wait while recv has only just begun
    for number in HANDED_ON:
        signal.signal(number, lambda number, frame: None)
    signal.signal(signal.SIGTSTP, lambda number, frame: os.kill(os.getpid(), signal.SIGSTOP))
    select.select([connection], [], [])
    answer = connection.recv(16)
    code = int(answer) if answer else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
