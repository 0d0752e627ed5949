"""Black-box test tools: a real server process, a raw RESP client, transcripts.

client, server, transcript, recordings, syscalls and data_directory do not import millstream: their
tests see only what any client sees. The same tools run against redis-server, which tests the tools
themselves. needs reads the command table to determine what can be tested.
"""
