"""The network interface that the nodes of a job use."""

import os

import pytest

from snaketrain.launch.slurm_step import address_of, use_interface


def test_an_interface_is_passed_to_both_libraries(monkeypatch):
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that the test's changes are undone
        monkeypatch.delenv(name)
    assert address_of("lo") == "127.0.0.1"
    use_interface("lo")
    assert (os.environ["NCCL_SOCKET_IFNAME"], os.environ["GLOO_SOCKET_IFNAME"]) == ("=lo", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib1")
    use_interface("lo")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib1"


def test_a_missing_interface_is_an_error_that_lists_the_others():
    with pytest.raises(SystemExit, match=r"compute.interface: \S+ has no interface `ib0` with an IPv4 address .* Name one of .*lo"):
        address_of("ib0")
