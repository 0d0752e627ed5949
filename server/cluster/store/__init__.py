"""The store that the nodes of a cluster share, which is etcd."""
