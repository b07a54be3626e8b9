"""Commands to groups: who is in one, an index entry for each member, and the payload that all of them share."""
