// Reads eight neighbouring keys or values kept as f16, two to a word.

fn load_keys(octet: u32) -> Octet {
    return halves(k_pages[octet]);
}

fn load_values(octet: u32) -> Octet {
    return halves(v_pages[octet]);
}

fn halves(q: vec4u) -> Octet {
    return Octet(
        vec4f(unpack2x16float(q.x), unpack2x16float(q.y)),
        vec4f(unpack2x16float(q.z), unpack2x16float(q.w)),
    );
}
