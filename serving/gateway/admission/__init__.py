"""Which calls may enter the engines, and when: one queue for all replicas (`admission.OneQueue`), one queue for each
(`replica_queues.ReplicaQueues`), and prompts that idle engines read ahead (`prefix_hints`).
"""
