# find_package(weft) and then target_link_libraries(program weft::weft), or weft::static for the archive.
set(weft_VERSION "@version@")
get_filename_component(_weft_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET weft::weft)
  add_library(weft::weft SHARED IMPORTED)
  set_target_properties(weft::weft PROPERTIES
    IMPORTED_LOCATION "${_weft_prefix}/lib/libweft.so.0"
    IMPORTED_SONAME "libweft.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_weft_prefix}/include")
  add_library(weft::static STATIC IMPORTED)
  set_target_properties(weft::static PROPERTIES
    IMPORTED_LOCATION "${_weft_prefix}/lib/libweft.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_weft_prefix}/include"
    INTERFACE_LINK_LIBRARIES "gcc_s;util;rt;pthread;m;dl")
endif()
unset(_weft_prefix)
