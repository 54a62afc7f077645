"""The network interface that the nodes of a job use."""

import os

import pytest

from snaketrain.launch.interfaces import address_of, use_interface


def test_an_interface_has_an_address_and_both_libraries_are_told(monkeypatch):
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that what the test leaves is undone
        monkeypatch.delenv(name)
    assert address_of("lo") == "127.0.0.1"
    use_interface("lo")
    assert (os.environ["NCCL_SOCKET_IFNAME"], os.environ["GLOO_SOCKET_IFNAME"]) == ("=lo", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib1")
    use_interface("lo")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib1"


def test_an_interface_that_is_missing_is_an_error_with_those_that_there_are():
    with pytest.raises(SystemExit, match=r"compute.interface: \S+ has no interface `ib0` with an IPv4 address .* Name one of .*lo"):
        address_of("ib0")
