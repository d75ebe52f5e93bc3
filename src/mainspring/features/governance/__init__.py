"""Call policies: one small class per question a call must pass. Their order is the order of the list they are given in."""
