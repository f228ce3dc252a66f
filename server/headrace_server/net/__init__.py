"""Transport between a server and its trainers.

public_socket           ZeroMQ's socket for trainers, of the locator and of each worker, with
  connections           the connections that it ends where there are too many
  keyring               the keys that it lets in
  refusals              the messages that it takes, counts, and refuses
  sockets               the options of ZeroMQ's sockets
channel_server          Unix sockets for trainers of a worker's host
bounded_map             a mapping of which trainers determine the size
"""
