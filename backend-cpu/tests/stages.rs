//! stub
#[test] fn stub() {}
