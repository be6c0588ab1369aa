"""Checks that a document of `weft bench mpi` has every row: rows.py FILE [hpcc]. Rows may be missing if the document says why, but not those of weft."""
import json
import sys

METRICS = "rtt bandwidth rate barrier allreduce put put.bandwidth get get.bandwidth nbody nbody.speedup"
HPCC = "hpcc.hpl hpcc.transpose hpcc.random hpcc.fft"
# On one host, each MPI is measured over each transport. Between hosts, MPICH has no transport of its own, and Open MPI's put and get over tcp
# are left out: they would use the same transport as those of openmpi-own.
LOCAL = [f"{mpi}-{transport}" for mpi in ("openmpi", "mpich") for transport in ("weft", "own", "tcp", "shm")]
HOSTS = ["openmpi-weft", "openmpi-own", "openmpi-tcp", "mpich-weft", "mpich-tcp"]

is_of_hpcc = sys.argv[2:] == ["hpcc"]
document = json.load(open(sys.argv[1]))
rows = {}
for row in document["rows"]:
    assert row["median"] > 0 and row["n"] > 0, row
    rows.setdefault(row["system"], set()).add((row["metric"], row["size"]))
is_of_hosts = document["rows"][0]["where"] == "hosts"
for system in HOSTS if is_of_hosts else LOCAL:
    mpi, transport = system.split("-")
    if is_of_hpcc and mpi != "openmpi":
        continue
    expected = rows[mpi + "-weft"]
    assert {metric for metric, _ in expected} == {"mpi." + name for name in (HPCC if is_of_hpcc else METRICS).split()}, expected
    if is_of_hosts and system == "openmpi-tcp":
        expected = {row for row in expected if not row[0].startswith(("mpi.put", "mpi.get"))}
    found = rows.get(system, set())
    told = [note for note in document.get("left_out", []) if note.startswith(system + ",")]
    print(f"{system}: {len(found)} rows", *told, sep="\n  ")
    assert found == expected or (told and transport not in ("weft", "own")), (system, expected - found, told)
    assert not (told and transport == "weft"), told
