// Which tokens a row attends to: all of its sequence up to itself.

fn reaches(token: u32, position: u32) -> bool {
    return token <= position;
}

// The first page, from page `p` on, that the row at `position` reaches.
fn page_from(p: u32, position: u32) -> u32 {
    return p;
}

// Whether a token up to the last row's own counts for any of the rows from `lowest` on.
fn counts(token: u32, lowest: u32) -> bool {
    return true;
}

// Whether rows from `lowest` to `highest` reach, all together, one stretch of tokens without a gap.
fn reach_together(lowest: u32, highest: u32) -> bool {
    return true;
}
