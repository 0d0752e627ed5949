"""Black-box test machinery: a real server process, a raw RESP client, transcripts.

client, server, transcript, recordings, syscalls and data_directory import nothing of millstream:
their tests see what a stranger on the socket sees, and the same machinery plays against
redis-server, which proves that the machinery itself is right. needs reads the command table, to
know what can be tested.
"""
