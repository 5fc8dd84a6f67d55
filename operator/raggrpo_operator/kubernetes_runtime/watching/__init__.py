"""What the watches bring: cached objects, evidence about pods, the newest version of each job."""
