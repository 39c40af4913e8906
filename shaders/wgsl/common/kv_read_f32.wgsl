// Reads eight neighbouring keys or values kept as f32.

fn load_keys(octet: u32) -> Octet {
    return Octet(bitcast<vec4f>(k_pages[2u * octet]), bitcast<vec4f>(k_pages[2u * octet + 1u]));
}

fn load_values(octet: u32) -> Octet {
    return Octet(bitcast<vec4f>(v_pages[2u * octet]), bitcast<vec4f>(v_pages[2u * octet + 1u]));
}
