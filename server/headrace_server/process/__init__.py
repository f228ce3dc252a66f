"""The parts that several processes of a server share.

settings, option        what users configure: each option once, with its check and its help
config                  what the processes get of that, as plain data
rundir, worker_diary    files in shared memory: of a server, and what a worker does
child                   a process and its parent: orders, reports, output, death
public_socket           ZeroMQ's socket for trainers, of the locator and of each worker, with
  connections           the connections that it ends where there are too many
  keyring               the keys that it lets in
  refusals              the messages that it takes, counts, and refuses
  sockets               the options of ZeroMQ's sockets
channel_server          Unix sockets for trainers of a worker's host
statuses                the status of a server, and how its parts are joined
bounded_map             a mapping of which trainers determine the size
"""
