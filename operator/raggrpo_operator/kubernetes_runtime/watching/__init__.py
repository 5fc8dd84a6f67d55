"""What the watches deliver: cached objects, evidence about pods, each job's newest version."""
