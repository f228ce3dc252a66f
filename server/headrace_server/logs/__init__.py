"""Logs of live data: producers append steps of sequences, and feeds read them in order.

    producers ── Item ──► ledger ── Group ──► files
              ◄─ Answer ──   │                  │ stored
                             └── next_event ◄───┘      ──► a feed's machine, its journal ──► release

A ``Log`` is one partition of a log in one worker.  The worker's loop calls it, and it never waits:

    files = LogFiles(directory, "episodes/3", durability, options.file_bytes, wake_fd)
    log = Log(files, options, now)                 with what is stored there, or LogDamaged
    log.ledger.attach(feed, seen, floors, since)   each feed and snapshot that has a journal …
    log.begin()                                    … and no more of them

    log.ledger.greet(name, birth, connection, heard, now, reopens)
    log.ledger.append(connection, items, now, heard, wants)
    log.ledger.leave(connection), gone(connection), close(now)
    log.ledger.sent                                answers to send; the caller empties the list
    log.flush()                                    after each round, and when wake_fd is readable
    log.tick(now)                                  some fifty times a second
    log.ledger.starving = …                        whether all feeds lack steps

    log.next_event(feed)                           the next record for a feed, or None
    log.parts(sequence), log.context(sequence)     its steps, as views of the files
    log.ledger.release(feed, seen, floors, done)   when the feed's journal has stored so much

``now`` is in seconds since 1970 and never steps back.  The name of a sequence is the position of
the record that opened it.  ``seen`` is the position up to which a feed has applied the log, and
``floors`` has the first step that it needs, left context included, of each sequence that it has
opened and not finished.  A new feed has seen the last durable record, or -1 if it reads all that is
there, and that is its ``since``.  A snapshot keeps ``ledger.table_of(feed)`` as its ``since``, and
a feed that is taken back to it gets that, and another name.

``records`` has the bytes, ``words`` the values, ``sequences`` the memory.  ``ledger`` decides, and
is pure; ``log_files`` writes, and ``log`` joins the two.
"""
