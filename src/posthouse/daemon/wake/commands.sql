-- :name on_mail
SELECT agent, command FROM on_mail

-- :name set_on_mail
INSERT INTO on_mail (agent, command) VALUES (?, ?) ON CONFLICT (agent) DO UPDATE SET command = excluded.command

-- :name remove_on_mail
DELETE FROM on_mail WHERE agent = ?
