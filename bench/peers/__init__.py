"""posthouse beside Redis, PostgreSQL, NATS JetStream, RabbitMQ and etcd, at equal durability on this machine."""
