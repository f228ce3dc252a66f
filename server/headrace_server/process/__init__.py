"""The parts that several processes of a server share.

settings, option        what users configure: each option once, with its check and its help
config                  what the processes get of that, as plain data
rundir, worker_diary    files in shared memory: of a server, and what a worker does
child                   a process and its parent: orders, reports, output, death
"""
