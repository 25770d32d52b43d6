-- Events whose record is pruned and whose content the lake provably holds, but which somebody still needs: current ones,
-- messages on their way. They are looked at again with every pruning, until they can go.
CREATE TABLE kept_events (
    seq INTEGER PRIMARY KEY
) STRICT;
