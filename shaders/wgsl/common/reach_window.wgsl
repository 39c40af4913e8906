// Which tokens a row attends to: the sinks, which are the first of its sequence, and the window, which ends with itself.
// What lies between is never read: its pages may be anybody's by now.
// source: Beltagy et al. 2020, arXiv:2004.05150 (window); Xiao et al. 2023, arXiv:2309.17453 (sinks)

fn window_start(position: u32) -> u32 {
    return max(position + 1u, heads.window) - heads.window;
}

fn reaches(token: u32, position: u32) -> bool {
    return token <= position && (token < heads.sinks || token >= window_start(position));
}

// The first page, from page `p` on, that the row at `position` reaches.
fn page_from(p: u32, position: u32) -> u32 {
    return select(max(p, window_start(position) / PAGE), p, p * PAGE < heads.sinks);
}

// Whether a token up to the last row's own counts for any of the rows from `lowest` on.
fn counts(token: u32, lowest: u32) -> bool {
    return token < heads.sinks || token >= window_start(lowest);
}

// Whether rows from `lowest` to `highest` reach, all together, one stretch of tokens without a gap beside the sinks.
fn reach_together(lowest: u32, highest: u32) -> bool {
    return highest - lowest < heads.window;
}
