"""The images, the compose file and the manifests, run as far as this machine can.

    python -m tests.containers [--install] [--scratch DIR] [--keep]

    machine's own packages ─► look-alike of python:3.11-slim ─► server image, trainer image
                                                                   │             │
    trainer outside ◄── TCP ── server container ── shared memory ──┘◄── trainer container

Each check ends as *ran* (it was done), *validated* (a tool read a file, nothing was started),
*skipped* (with the reason) or *failed*.  Images come from no registry: the base is built from
the packages of the distribution, so what is run is the Dockerfiles on a base that is alike.  All
lies in a scratch directory: storage, networks, sockets.
"""
