"""Nothing lost, nothing twice: whole servers and trainers under random faults, and a judge.

    driver ── starts, kills, stops, cuts ──► server (state_dir)  ◄── proxies ──► trainers
                                                │                                  │ append
                                                └── stores at the end ──► judge ◄──┴─ ledger

``python -m tests.trials faults --seconds 60`` goes through all kinds of feeds.  What happens is
drawn from a seed; when exactly it happens is the machine's.  The judge takes no word of the server
for granted but its files at the end: every row is committed by one token there, every
acknowledgement that a trainer heard is kept there, none that it was refused is, and every state
that was handed out is one that was saved for the segment before it.
"""
