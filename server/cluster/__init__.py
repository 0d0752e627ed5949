"""The nodes of a cluster, on one machine (`supervisor`, `node`) or on several (`member_node`).

An election of a shard on several machines, up to the first confirmed write:

1. A replica has not heard the primary for the node timeout (`membership`). It writes that it is a
   candidate for the next term into etcd (`store`).
2. It asks the other members for promises (`election`, `promise_request`). A member that hears the
   primary refuses. One that promises stores the term before it answers, and acknowledges no frame
   of a lower term from then on (`peers`, `replication/terms`).
3. With M - N promises, it writes the member with the greatest (term, number) into etcd as the
   primary of the new term. The transaction fails if the shard has changed meanwhile.
4. All members read that from etcd (`member_service`). The chosen one leads: its first frame begins
   a line of history in the new term. The others follow it, and cut off what it does not have.
5. When N of them have acknowledged the first frame in the new term, all frames up to it are
   confirmed (`replication/confirming`). Requests are served from then on, and the reply of each
   write is sent when N members have its frame.
"""
