-- Events of a kind whose d begins with a prefix need the fence of a resource, which may contain {d}.
CREATE TABLE fence_rules (
    mesh TEXT NOT NULL REFERENCES meshes (mesh),
    kind INTEGER NOT NULL,
    d_prefix TEXT NOT NULL,
    resource TEXT NOT NULL,
    PRIMARY KEY (mesh, kind, d_prefix)
) STRICT, WITHOUT ROWID;
